"""How fast an engine is: learned from its own steps and finished requests, forgetting what is long past."""

from dataclasses import dataclass, field

STEPS_HALF_LIFE = 500.0
REQUESTS_HALF_LIFE = 50.0
STEPS_MIN, REQUESTS_MIN = 20.0, 3.0
"""Below these nothing is claimed. A first step is slow, and whoever is believed to be slow on its account is asked no
more and never found to be fast."""


@dataclass(slots=True)
class EngineRates:
    """One engine's prefill rate, answer length, and tokens/s of one request by batch size.

    The seconds between two tokens of one request grow with the batch, and nearly linearly so: each request brings its
    own attention and its share of the matrices' work. They are fitted as `a + b * batch_size` by least squares over
    steps, with a and b not negative. A step's tokens count, not its passes, so speculation is in it as it is.
    """

    _prompt_tokens: float = 0.0
    _prefill_s: float = 0.0
    _answers: float = 0.0
    _answer_tokens: float = 0.0
    # Sums over steps of 1, b, b², y, b·y, with b the batch size and y the seconds between two tokens of one request.
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def stepped(self, batch_size: int, tokens: int, seconds: float) -> None:
        """Note a step.

        Args:
            batch_size: Requests that it decoded.
            tokens: Tokens that it gave them, all together.
            seconds: Since each of them had its last tokens, summed over the requests.
        """
        if batch_size < 1 or tokens < 1 or seconds <= 0:
            return
        between_s = seconds / tokens
        kept = 0.5 ** (1.0 / STEPS_HALF_LIFE)
        new = (1.0, batch_size, batch_size**2, between_s, batch_size * between_s)
        self._sums = [old * kept + each for old, each in zip(self._sums, new, strict=True)]

    def finished(self, prompt_tokens: int, prefill_s: float, output_tokens: int) -> None:
        """Note a finished request; `prompt_tokens` are those that were not cached."""
        kept = 0.5 ** (1.0 / REQUESTS_HALF_LIFE)
        self._prompt_tokens = self._prompt_tokens * kept + prompt_tokens
        self._prefill_s = self._prefill_s * kept + prefill_s
        self._answers = self._answers * kept + 1.0
        self._answer_tokens = self._answer_tokens * kept + output_tokens

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens each second of prefill; 0 before `REQUESTS_MIN`."""
        known = self._answers >= REQUESTS_MIN - 0.5 and self._prefill_s > 0
        return self._prompt_tokens / self._prefill_s if known else 0.0

    @property
    def output_tokens_mean(self) -> float:
        """Tokens of a usual answer; 0 before any."""
        return self._answer_tokens / self._answers if self._answers else 0.0

    def request_tokens_per_s(self, batch_max: int) -> tuple[float, ...]:
        """Tokens/s of one request at each batch size up to `batch_max`, 0 at none; empty before `STEPS_MIN`."""
        count, batches, squares, seconds, products = self._sums
        if count < STEPS_MIN - 0.5:
            return ()
        spread = count * squares - batches**2
        # Steps of one batch size alone say nothing of the slope.
        slope = max(0.0, (count * products - batches * seconds) / spread) if spread > 1e-6 * count * squares else 0.0
        base = (seconds - slope * batches) / count
        if base < 0.0:
            base, slope = 0.0, products / squares
        return (0.0, *(1.0 / (base + slope * batch_size) for batch_size in range(1, batch_max + 1)))
