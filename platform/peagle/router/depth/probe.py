"""Short visits to another depth, to learn what reports at the present one cannot tell.

At K = 0 nothing is drafted, so nothing would ever show that drafting pays again; and a depth that was never tried may
be better than the prior thinks. A probe brings evidence for a report or two. If the depth proves better it is kept;
else the range returns, and the wait for the next probe grows up to a bound: never a permanent off, at a bounded
price.
"""

from dataclasses import dataclass, replace
from math import inf, log1p

from peagle.router.depth.forecast import Forecast
from peagle.router.depth.ladder import BatchRange
from peagle.router.depth.policy import allowed_depths
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import StepCell

# What a probe must have seen before it is judged.
_STEPS_MIN, _DRAFTS_MIN = 12, 30
# A depth is worth a probe if it might be better, this many standard deviations above what is expected. K = 0 gets more
# while it was never measured: it is a step of another kind, of which measuring other depths tells little.
_HOPE_SDS, _HOPE_SDS_OFF = 2.0, 3.0
# Each probe that brings nothing makes the wait for the next this much longer.
_WAIT_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe under way in batch range `index`.

    Attributes:
        depth: K in the meantime.
        confirmations: Reports in which it must still prove better.
        started_s: When it began.
        steps, drafts: Seen so far at its depth.
    """

    index: int
    depth: int
    confirmations: int
    started_s: float
    steps: int = 0
    drafts: int = 0

    def saw(self, cells: tuple[StepCell, ...], batches: BatchRange) -> "Probe":
        mine = [cell for cell in cells if cell.depth == self.depth and batches.first <= cell.batch_size <= batches.last]
        return replace(
            self,
            steps=self.steps + sum(cell.steps for cell in mine),
            drafts=self.drafts + sum(cell.drafts for cell in mine),
        )

    @property
    def saw_enough(self) -> bool:
        return self.steps >= _STEPS_MIN and (self.drafts >= _DRAFTS_MIN or self.depth == 0)


@dataclass(frozen=True, slots=True)
class ProbeClock:
    """When the next probe of a batch range may start; a depth not yet in `tried` may be probed at any time."""

    wait_s: float
    next_s: float = -inf
    tried: frozenset[int] = frozenset()

    def after_nothing(self, depth: int, settings: DepthSettings, now_s: float) -> "ProbeClock":
        wait_s = min(self.wait_s * _WAIT_FACTOR, settings.probe_wait_s[1])
        return ProbeClock(wait_s, now_s + wait_s, self.tried | {depth})

    def after_success(self, depth: int, now_s: float) -> "ProbeClock":
        return ProbeClock(self.wait_s, now_s + self.wait_s, self.tried | {depth})

    def anew(self, settings: DepthSettings, now_s: float) -> "ProbeClock":
        """The prompts have changed, so what the last probes found no longer counts."""
        wait_s = settings.probe_wait_s[0]
        return ProbeClock(wait_s, min(self.next_s, now_s + wait_s), self.tried)


def worth_probing(forecast: Forecast, index: int, present: int, clock: ProbeClock) -> int | None:
    """Return the depth that a probe should visit from `present`; None if none has a chance to be better.

    A depth that was never measured at these batch sizes is tried at once, so that the best one is found within seconds
    of a new load; later visits wait for the clock.
    """
    due = forecast.now_s >= clock.next_s
    others = [rung for rung in allowed_depths(forecast, index, present) if rung != present]
    untried = {rung for rung in others if rung not in clock.tried and not forecast.cost.measured((index, rung))}
    rungs = others if due else sorted(untried)
    if due and present == 0 and is_blind(forecast):
        above = [rung for rung in rungs if rung > 0]
        return max(above, key=lambda rung: forecast.log_tokens_per_s(index, rung), default=None)
    hopes = {}
    for rung in rungs:
        gain = forecast.gain(index, present, rung)
        hopes[rung] = gain.log_ratio + (_HOPE_SDS_OFF if rung == 0 and rung in untried else _HOPE_SDS) * gain.sd
    best = max(hopes, key=hopes.__getitem__, default=None)
    return best if best is not None and hopes[best] > log1p(forecast.settings.gain_ratio) else None


def proves_better(forecast: Forecast, index: int, present: int, depth: int) -> bool:
    """Whether a depth that has been measured promises the least gain over the present one."""
    allowed = depth in allowed_depths(forecast, index, present)
    return allowed and forecast.gain(index, present, depth).log_ratio > log1p(forecast.settings.gain_ratio)


def is_blind(forecast: Forecast) -> bool:
    """Whether no draft has been seen lately, so that the estimate tells of traffic that may be gone."""
    seen_s = forecast.acceptance.seen_s
    return seen_s is None or forecast.now_s - seen_s >= forecast.settings.probe_wait_s[0]
