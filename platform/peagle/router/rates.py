"""Speed of an engine, learned from its own steps and finished requests; old observations fade.

A replica that looks slow gets fewer requests, so it has fewer chances to show that it is no longer slow. Its rates are
therefore trusted only as far as they rest on many recent steps; the rest is the fleet's mean.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from peagle.router.snapshot import ReplicaSnapshot, RequestRates

STEPS_HALF_LIFE = 500.0
REQUESTS_HALF_LIFE = 50.0
AGE_HALF_LIFE_S = 2.0
"""Half-life of observations, in seconds. After a few of these, a replica that had a slow moment is tried again."""
STEPS_LEFT, REQUESTS_LEFT = 20.0, 10.0
"""Weight that old observations keep, whatever their age: a line needs more than one point."""
STEPS_DOUBTED, REQUESTS_DOUBTED = 50.0, 5.0
"""Number of observations at which a replica's rate and the fleet's mean count half each."""
STEPS_MIN, REQUESTS_MIN = 20.0, 3.0
"""Minimum observations for a rate. First steps are slow, and a replica believed to be slow gets no more requests that
would correct this."""
POOLED_TOKENS_PER_S = 1e9
"""Rate of an engine that embeds or scores: its requests cost only their prompts."""


class _Line:
    """Least squares of `y = base + slope * x`.

    Each point counts half after `half_life` more points, and half after `AGE_HALF_LIFE_S`, but age leaves all points
    together a weight of `left`.
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
        """Return the number of recent points behind the line."""
        return float(self._evidence * 0.5 ** (max(0.0, now_s - self._at_s) / AGE_HALF_LIFE_S))

    @property
    def count(self) -> float:
        return self._sums[0]

    @property
    def slope(self) -> float | None:
        """Slope of the line; None if all x are alike."""
        count, xs, squares, ys, products = self._sums
        spread = count * squares - xs**2
        return (count * products - xs * ys) / spread if spread > 1e-6 * count * squares else None

    @property
    def proportion(self) -> float:
        """Slope of a line through the origin; 0 if no x is above 0."""
        _, _, squares, _, products = self._sums
        return products / squares if squares else 0.0

    def base(self, slope: float) -> float:
        """Return the base that belongs to `slope`."""
        count, xs, _, ys, _ = self._sums
        return (ys - slope * xs) / count


@dataclass(slots=True)
class EngineRates:
    """One engine's prefill rate, answer length, and tokens/s of one request by batch size.

    The seconds between two tokens of one request grow almost linearly with the batch, since each request adds its own
    attention and its share of matrix work. They are fitted as `a + b * batch_size` by least squares over steps, with a
    and b not negative. Tokens are counted instead of passes, so the rate includes speculation.
    """

    _pools: bool = False
    _answers: float = 0.0
    _answer_tokens: float = 0.0
    # Seconds between two tokens of one request by batch size, and seconds of prefill by prompt tokens.
    _between: _Line = field(default_factory=lambda: _Line(STEPS_HALF_LIFE, STEPS_LEFT))
    _prefill: _Line = field(default_factory=lambda: _Line(REQUESTS_HALF_LIFE, REQUESTS_LEFT))

    def stepped(self, batch_size: int, tokens: int, seconds: float, now_s: float) -> None:
        """Record a step that ended at `now_s`.

        Args:
            batch_size: Requests that it decoded.
            tokens: Tokens generated in it, over all requests.
            seconds: Time since each request's previous tokens, summed over the requests.
        """
        if batch_size < 1 or tokens < 1 or seconds <= 0:
            return
        self._between.add(batch_size, seconds / tokens, now_s)

    def finished(self, prompt_tokens: int, prefill_s: float, output_tokens: int, now_s: float) -> None:
        """Record a request that finished at `now_s`; `prompt_tokens` are the uncached ones.

        A request without output is ignored: it failed before its prefill, whose start vLLM then reports as time 0.
        """
        if output_tokens < 1:
            return
        kept = 0.5 ** (1.0 / REQUESTS_HALF_LIFE)
        self._prefill.add(prompt_tokens, prefill_s, now_s)
        self._answers = self._answers * kept + 1.0
        self._answer_tokens = self._answer_tokens * kept + output_tokens

    def pooled(self, prompt_tokens: int, prefill_s: float, now_s: float) -> None:
        """Record a request that was embedded or scored; its result has no tokens and arrives with its prefill."""
        self._pools = True
        self._prefill.add(prompt_tokens, prefill_s, now_s)

    def told(self, snapshot: ReplicaSnapshot, now_s: float) -> ReplicaSnapshot:
        """Return the engine's snapshot with these rates and their evidence."""
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
        """Prompt tokens per second of prefill; 0 before `REQUESTS_MIN`.

        The fixed cost of a prefill is excluded. Otherwise a replica with short or mostly cached prompts would look
        slow.
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
        """Mean tokens of an answer; 0 before any answer."""
        return self._answer_tokens / self._answers if self._answers else 0.0

    def request_tokens_per_s(self, batch_max: int) -> RequestRates:
        """Return the tokens/s of one request in batches up to `batch_max`; empty before `STEPS_MIN`."""
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
    """Mean rates of one model's replicas, towards which each replica's own rates are drawn."""

    def __init__(self, reported: Iterable[ReplicaSnapshot] = ()) -> None:
        self._reported = tuple(each for each in reported if each.has_rates and each.rate_steps and each.rate_prefills)
        self._prefill_tokens_per_s = _mean(
            [each.prefill_tokens_per_s for each in self._reported],
            [_believed(each.rate_prefills, REQUESTS_DOUBTED) for each in self._reported],
        )
        self._output_tokens_mean = sum(each.output_tokens_mean for each in self._reported) / max(1, len(self._reported))
        self._request_tokens_per_s: dict[tuple[int, ...], tuple[float, ...]] = {}

    def levelled(self, seen: ReplicaSnapshot) -> ReplicaSnapshot:
        """Return `seen` with each rate mixed with the mean, as far as its own evidence is weak.

        A replica without measurements gets the mean. If no replica has any, `seen` is unchanged.
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
        """Return the mean tokens/s of one request at batch `sizes`, cached for each set of sizes."""
        if sizes not in self._request_tokens_per_s:
            believed = [_believed(each.rate_steps, STEPS_DOUBTED) for each in self._reported]
            self._request_tokens_per_s[sizes] = tuple(
                _mean([each.request_tokens_per_s.at(size) for each in self._reported], believed) for size in sizes
            )
        return self._request_tokens_per_s[sizes]


def _believed(evidence: float, doubted: float) -> float:
    return evidence / (evidence + doubted)


def _mean(rates: Sequence[float], weights: Sequence[float]) -> float:
    """Return the rate of the mean time; 0 for no rates."""
    seconds = sum(weight / rate for rate, weight in zip(rates, weights, strict=True))
    return sum(weights) / seconds if seconds else 0.0
