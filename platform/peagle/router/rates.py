"""How fast an engine is: learned from its own steps and finished requests, forgetting what is long past.

A replica that looks slow gets fewer requests, so that it has fewer occasions to show that it no longer is. Its figures
are therefore believed as far as they rest on many and recent steps, and for the rest taken to be the fleet's mean.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from peagle.router.snapshot import ReplicaSnapshot, RequestRates

STEPS_HALF_LIFE = 500.0
REQUESTS_HALF_LIFE = 50.0
AGE_HALF_LIFE_S = 2.0
"""A replica that had a slow moment is tried again after a few of these."""
STEPS_LEFT, REQUESTS_LEFT = 20.0, 10.0
"""However old, what was seen keeps this weight beside what is seen next: a line through one point is not one."""
STEPS_DOUBTED, REQUESTS_DOUBTED = 50.0, 5.0
"""A figure that rests on so many counts half, and the fleet's mean the other half."""
STEPS_MIN, REQUESTS_MIN = 20.0, 3.0
"""Below these nothing is claimed. A first step is slow, and whoever is believed to be slow on its account is asked no
more and never found to be fast."""
POOLED_TOKENS_PER_S = 1e9
"""Of an engine that embeds or scores, whose requests cost their prompts alone."""


class _Line:
    """Least squares of `y = base + slope * x`.

    Each point counts half after `half_life` more, and half after `AGE_HALF_LIFE_S`, but age leaves all together a
    weight of `left`.
    """

    def __init__(self, half_life: float, left: float) -> None:
        self._kept, self._left = 0.5 ** (1.0 / half_life), left
        self._sums = (0.0,) * 5
        self._evidence, self._at_s = 0.0, 0.0

    def add(self, x: float, y: float, now_s: float) -> None:
        aged = max(0.5 ** ((now_s - self._at_s) / AGE_HALF_LIFE_S), min(1.0, self._left / max(self.count, 1.0)))
        new = (1.0, x, x * x, y, x * y)
        self._sums = tuple(old * self._kept * aged + each for old, each in zip(self._sums, new, strict=True))
        self._evidence = self.evidence(now_s) * self._kept + 1.0
        self._at_s = now_s

    def evidence(self, now_s: float) -> float:
        """How many recent points it rests on."""
        return float(self._evidence * 0.5 ** (max(0.0, now_s - self._at_s) / AGE_HALF_LIFE_S))

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

    _pools: bool = False
    _answers: float = 0.0
    _answer_tokens: float = 0.0
    # By batch size, the seconds between two tokens of one request; by prompt tokens, the seconds of their prefill.
    _between: _Line = field(default_factory=lambda: _Line(STEPS_HALF_LIFE, STEPS_LEFT))
    _prefill: _Line = field(default_factory=lambda: _Line(REQUESTS_HALF_LIFE, REQUESTS_LEFT))

    def stepped(self, batch_size: int, tokens: int, seconds: float, now_s: float) -> None:
        """Note a step that ended at `now_s`.

        Args:
            batch_size: Requests that it decoded.
            tokens: Tokens that it gave them, all together.
            seconds: Since each of them had its last tokens, summed over the requests.
        """
        if batch_size < 1 or tokens < 1 or seconds <= 0:
            return
        self._between.add(batch_size, seconds / tokens, now_s)

    def finished(self, prompt_tokens: int, prefill_s: float, output_tokens: int, now_s: float) -> None:
        """Note a request that finished at `now_s`; `prompt_tokens` are those that were not cached.

        One without output says nothing: it failed before its prefill, and vLLM takes that to have begun with the clock.
        """
        if output_tokens < 1:
            return
        kept = 0.5 ** (1.0 / REQUESTS_HALF_LIFE)
        self._prefill.add(prompt_tokens, prefill_s, now_s)
        self._answers = self._answers * kept + 1.0
        self._answer_tokens = self._answer_tokens * kept + output_tokens

    def pooled(self, prompt_tokens: int, prefill_s: float, now_s: float) -> None:
        """Note a request that was embedded or scored; its answer has no tokens, and came with its prefill."""
        self._pools = True
        self._prefill.add(prompt_tokens, prefill_s, now_s)

    def told(self, snapshot: ReplicaSnapshot, now_s: float) -> ReplicaSnapshot:
        """Return the engine's snapshot with these rates, and with what they rest on."""
        return replace(
            snapshot,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            request_tokens_per_s=self.request_tokens_per_s(snapshot.max_running_requests),
            rate_steps=self._between.evidence(now_s),
            rate_prefills=self._prefill.evidence(now_s),
            output_tokens_mean=self.output_tokens_mean,
        )

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
        if self._pools:
            return RequestRates.of({1: POOLED_TOKENS_PER_S})
        line = self._between
        if line.count < STEPS_MIN - 0.5:
            return RequestRates()
        slope = max(0.0, line.slope or 0.0)
        base = line.base(slope)
        if base < 0.0:
            base, slope = 0.0, line.proportion
        return RequestRates.of({size: 1.0 / (base + slope * size) for size in (1, batch_max)})


class FleetRates:
    """The mean rates of one model's replicas, towards which each replica's own are drawn."""

    def __init__(self, reported: Iterable[ReplicaSnapshot] = ()) -> None:
        self._reported = tuple(each for each in reported if each.has_rates and each.rate_steps and each.rate_prefills)
        self._prefill_tokens_per_s = _mean(
            [each.prefill_tokens_per_s for each in self._reported],
            [_believed(each.rate_prefills, REQUESTS_DOUBTED) for each in self._reported],
        )
        self._output_tokens_mean = sum(each.output_tokens_mean for each in self._reported) / max(1, len(self._reported))
        self._request_tokens_per_s: dict[tuple[int, ...], tuple[float, ...]] = {}

    def levelled(self, seen: ReplicaSnapshot) -> ReplicaSnapshot:
        """Return `seen` with rates in which the mean has the share that its own evidence leaves.

        One that has not measured has the mean's; where no replica has, it stays as it is.
        """
        if not self._reported:
            return seen
        prefill, rates = seen.prefill_tokens_per_s, seen.request_tokens_per_s
        if prefill:
            believed = _believed(seen.rate_prefills, REQUESTS_DOUBTED)
            prefill = _mean((prefill, self._prefill_tokens_per_s), (believed, 1.0 - believed))
        if rates.batch_sizes:
            believed = _believed(seen.rate_steps, STEPS_DOUBTED)
            pairs = zip(rates.tokens_per_s, self._at(rates.batch_sizes), strict=True)
            rates = RequestRates(rates.batch_sizes, tuple(_mean(pair, (believed, 1.0 - believed)) for pair in pairs))
        else:
            sizes = self._reported[0].request_tokens_per_s.batch_sizes
            rates = RequestRates(sizes, self._at(sizes))
        return replace(
            seen,
            prefill_tokens_per_s=prefill or self._prefill_tokens_per_s,
            request_tokens_per_s=rates,
            output_tokens_mean=self._output_tokens_mean,
        )

    def _at(self, sizes: tuple[int, ...]) -> tuple[float, ...]:
        """Return the mean tokens/s of one request at batch `sizes`, worked out once for each set of them."""
        if sizes not in self._request_tokens_per_s:
            believed = [_believed(each.rate_steps, STEPS_DOUBTED) for each in self._reported]
            self._request_tokens_per_s[sizes] = tuple(
                _mean([each.request_tokens_per_s.at(size) for each in self._reported], believed) for size in sizes
            )
        return self._request_tokens_per_s[sizes]


def _believed(evidence: float, doubted: float) -> float:
    return evidence / (evidence + doubted)


def _mean(rates: Sequence[float], weights: Sequence[float]) -> float:
    """Return the rate of the mean time; 0 of none."""
    seconds = sum(weight / rate for rate, weight in zip(rates, weights, strict=True))
    return sum(weights) / seconds if seconds else 0.0
