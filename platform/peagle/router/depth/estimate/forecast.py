"""Predicts for each depth its tokens/s and step time, and how certain a comparison of two depths is."""

from dataclasses import dataclass, field
from itertools import accumulate
from math import exp, log, sqrt

from peagle.router.depth.estimate.acceptance import Acceptance
from peagle.router.depth.estimate.prompt_cost import PromptCost
from peagle.router.depth.estimate.sharing import Sharing
from peagle.router.depth.estimate.step_cost import Load, StepCost
from peagle.router.depth.ladder import BatchRange, batch_ranges
from peagle.router.depth.priors import Terms
from peagle.router.depth.settings import DepthSettings


@dataclass(frozen=True, slots=True)
class Gain:
    """Logarithm of one depth's tokens/s over another's, prompts included, and its standard deviation.

    `seconds_sd` is the part that comes from step times.
    """

    log_ratio: float
    sd: float
    seconds_sd: float

    @property
    def ratio(self) -> float:
        """0.1 means a tenth more."""
        return exp(self.log_ratio) - 1.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predictions at one moment.

    `delivered_ratio` is the share of accepted drafts that reach a client; the end of an answer cuts off the rest.
    """

    acceptance: Acceptance
    cost: StepCost
    prompts: PromptCost
    sharing: Sharing
    delivered_ratio: float
    settings: DepthSettings
    now_s: float
    survival: tuple[float, ...] = field(init=False)
    ranges: tuple[BatchRange, ...] = field(init=False)
    _sums: tuple[float, ...] = field(init=False)
    _conditional: tuple[float, ...] = field(init=False)
    _variances: tuple[float, ...] = field(init=False)
    _coefficients: Terms = field(init=False)
    _prompts_s: tuple[float, float] = field(init=False)
    _rates: dict[tuple[int, int], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        computed = {
            "_conditional": self.acceptance.conditional,
            "survival": self.acceptance.survival,
            "_variances": self.acceptance.variances,
            "_sums": tuple(accumulate(self.acceptance.survival, initial=0.0)),
            "_coefficients": self.cost.coefficients,
            "ranges": batch_ranges(self.settings.batch_max),
            "_prompts_s": tuple(self.prompts.seconds(self.cost, drafts) for drafts in (False, True)),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    def step_s(self, index: int, depth: int) -> float:
        """Return the seconds of one step of batch range `index` at `depth`."""
        return exp(self._log_step_s(index, depth))

    def tokens(self, index: int, depth: int) -> float:
        """Return the tokens that a client gets from one step of one sequence in batch range `index`."""
        return 1.0 + self.delivered_ratio * self.right_drafts(index, depth)

    def right_drafts(self, index: int, depth: int) -> float:
        """Return the drafts that the target accepts in one step of one sequence."""
        return self._sums[depth] * self._shared(index, depth)

    def log_tokens_per_s(self, index: int, depth: int) -> float:
        key = index, depth
        if (found := self._rates.get(key)) is None:
            found = self._rates[key] = log(self.ranges[index].at * self.tokens(index, depth)) - self._log_step_s(
                index, depth
            )
        return found

    def tokens_per_s(self, index: int, depth: int) -> float:
        return exp(self.log_tokens_per_s(index, depth))

    def prompt_s(self, depth: int) -> float:
        """Return the seconds spent on prompts for each output token."""
        return self._prompts_s[self._drafts(depth)]

    def log_yield(self, index: int, depth: int) -> float:
        """Return the logarithm of long-run tokens/s, including time for prompts; depths are chosen by it.

        Decode steps alone do not show what the drafter costs on prompts.
        """
        return -log(exp(-self.log_tokens_per_s(index, depth)) + self.prompt_s(depth))

    def gain(self, index: int, before: int, after: int) -> Gain:
        """Return the gain of changing from `before` to `after`; common uncertainty cancels in its deviation."""
        log_ratio = self.log_yield(index, after) - self.log_yield(index, before)
        if before == after:
            return Gain(0.0, 0.0, 0.0)
        seconds_variance = self._seconds_variance(index, before, after)
        variance = self._tokens_variance(index, before, after) + seconds_variance
        logs = ((self.log_yield(index, each), self.log_tokens_per_s(index, each)) for each in (before, after))
        decoding_ratio = max(exp(all_ - decoding) for all_, decoding in logs)
        return Gain(log_ratio, decoding_ratio * sqrt(variance), decoding_ratio * sqrt(seconds_variance))

    def _log_step_s(self, index: int, depth: int) -> float:
        return self.cost.log_step_s(self._coefficients, self._load(index, depth), (index, depth))

    def _load(self, index: int, depth: int) -> Load:
        batch_size = self.ranges[index].at
        return Load(batch_size, batch_size * (depth + 1), batch_size if self._drafts(depth) else 0.0)

    def _drafts(self, depth: int) -> bool:
        return depth > 0 or not self.settings.drafter_skipped_at_zero

    @property
    def shares_drafts(self) -> bool:
        """Whether drafts are shared among requests. A K pinned by an operator applies to each request."""
        return self.settings.by_request and self.settings.limits.pin is None

    def _shared(self, index: int, depth: int) -> float:
        if not self.shares_drafts:
            return 1.0
        return self.sharing.gain_ratio(self.ranges[index].at, depth)

    def _tokens_variance(self, index: int, before: int, after: int) -> float:
        """Propagate the variance of each conditional probability, by the slope of log(tokens) in it."""
        total = 0.0
        shares = [
            (self.delivered_ratio * self._shared(index, depth) / self.tokens(index, depth), self._sums[depth], depth)
            for depth in (before, after)
        ]
        for i in range(max(before, after)):
            slopes = [factor * (sums - self._sums[i]) if i < depth else 0.0 for factor, sums, depth in shares]
            total += ((slopes[1] - slopes[0]) / max(self._conditional[i], 0.01)) ** 2 * self._variances[i]
        return total

    def _seconds_variance(self, index: int, before: int, after: int) -> float:
        first, second = (self.cost.shares(self._coefficients, self._load(index, depth)) for depth in (before, after))
        common = self.cost.spread(tuple(b - a for a, b in zip(first, second, strict=True)))
        own = (self.cost.residual_variance((index, depth), self.now_s) for depth in (before, after))
        return common + sum(own)
