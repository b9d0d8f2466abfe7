"""How fast an engine is: learned from its own steps and finished requests, forgetting what is long past."""

from dataclasses import dataclass, field

from peagle.router.snapshot import RequestRates

STEPS_HALF_LIFE = 500.0
REQUESTS_HALF_LIFE = 50.0
STEPS_MIN, REQUESTS_MIN = 20.0, 3.0
"""Below these nothing is claimed. A first step is slow, and whoever is believed to be slow on its account is asked no
more and never found to be fast."""


class _Line:
    """Least squares of `y = base + slope * x`. Each point counts half after `half_life` more."""

    def __init__(self, half_life: float) -> None:
        self._kept = 0.5 ** (1.0 / half_life)
        self._sums = (0.0,) * 5

    def add(self, x: float, y: float) -> None:
        new = (1.0, x, x * x, y, x * y)
        self._sums = tuple(old * self._kept + each for old, each in zip(self._sums, new, strict=True))

    @property
    def count(self) -> float:
        return self._sums[0]

    @property
    def slope(self) -> float | None:
        """None where all x are alike."""
        count, xs, squares, ys, products = self._sums
        spread = count * squares - xs**2
        return (count * products - xs * ys) / spread if spread > 1e-6 * count * squares else None

    @property
    def proportion(self) -> float:
        """The slope of a line through the origin; 0 where no x is above 0."""
        _, _, squares, _, products = self._sums
        return products / squares if squares else 0.0

    def base(self, slope: float) -> float:
        """The base that goes with `slope`."""
        count, xs, _, ys, _ = self._sums
        return (ys - slope * xs) / count


@dataclass(slots=True)
class EngineRates:
    """One engine's prefill rate, answer length, and tokens/s of one request by batch size.

    The seconds between two tokens of one request grow with the batch, and nearly linearly so: each request brings its
    own attention and its share of the matrices' work. They are fitted as `a + b * batch_size` by least squares over
    steps, with a and b not negative. A step's tokens count, not its passes, so speculation is in it as it is.
    """

    _answers: float = 0.0
    _answer_tokens: float = 0.0
    # By batch size, the seconds between two tokens of one request; by prompt tokens, the seconds of their prefill.
    _between: _Line = field(default_factory=lambda: _Line(STEPS_HALF_LIFE))
    _prefill: _Line = field(default_factory=lambda: _Line(REQUESTS_HALF_LIFE))

    def stepped(self, batch_size: int, tokens: int, seconds: float) -> None:
        """Note a step.

        Args:
            batch_size: Requests that it decoded.
            tokens: Tokens that it gave them, all together.
            seconds: Since each of them had its last tokens, summed over the requests.
        """
        if batch_size < 1 or tokens < 1 or seconds <= 0:
            return
        self._between.add(batch_size, seconds / tokens)

    def finished(self, prompt_tokens: int, prefill_s: float, output_tokens: int) -> None:
        """Note a finished request; `prompt_tokens` are those that were not cached.

        One without output says nothing: it failed before its prefill, and vLLM takes that to have begun with the clock.
        """
        if output_tokens < 1:
            return
        kept = 0.5 ** (1.0 / REQUESTS_HALF_LIFE)
        self._prefill.add(prompt_tokens, prefill_s)
        self._answers = self._answers * kept + 1.0
        self._answer_tokens = self._answer_tokens * kept + output_tokens

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens each second of prefill; 0 before `REQUESTS_MIN`.

        What a prefill takes whatever its length does not count: it would make a replica look slow whose prompts are
        short, or mostly cached.
        """
        line = self._prefill
        if line.count < REQUESTS_MIN - 0.5:
            return 0.0
        token_s = line.slope
        if token_s is None or token_s <= 0.0 or line.base(token_s) < 0.0:
            token_s = line.proportion
        return 1.0 / token_s if token_s > 0.0 else 0.0

    @property
    def output_tokens_mean(self) -> float:
        """Tokens of a usual answer; 0 before any."""
        return self._answer_tokens / self._answers if self._answers else 0.0

    def request_tokens_per_s(self, batch_max: int) -> RequestRates:
        """Tokens/s of one request in batches up to `batch_max`; none before `STEPS_MIN`."""
        line = self._between
        if line.count < STEPS_MIN - 0.5:
            return RequestRates()
        slope = max(0.0, line.slope or 0.0)
        base = line.base(slope)
        if base < 0.0:
            base, slope = 0.0, line.proportion
        return RequestRates.of({size: 1.0 / (base + slope * size) for size in (1, batch_max)})
