"""Short visits to another depth where the load is, to learn what reports at the present one cannot tell.

At K = 0 nothing is drafted, so nothing would ever show that drafting pays again; and a depth whose step is not known
well may be better than it seems. A trial lasts for a report or two, and the rule then chooses as ever.
"""

from dataclasses import dataclass, replace
from math import log1p

from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.ladder import BatchRange
from peagle.router.depth.rule.choice import allowed_depths
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import PromptStats, StepCell

# What a trial must have seen before it ends by itself.
_STEPS_ENOUGH, _DRAFTS_ENOUGH = 12, 60
# A depth is worth a trial if it might be better, so many standard deviations above what is expected: more of them for
# one whose step was never timed.
_HOPE_SDS, _HOPE_SDS_FIRST = 1.5, 2.0
# K = 0 is also tried where its step is known no better than so, as what speculation gains is told of it, once so many
# seconds may be spent on it.
_OFF_SD, _OFF_S = 0.06, 0.5
# No depth is tried in hope before the estimate rests on so many drafts; before that, anything may seem possible.
_EVIDENCE_DRAFTS = 200.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial under way in batch range `index`.

    Attributes:
        depth: K in the meantime.
        started_s: When it began.
        timed: Whether a step at its depth had been timed at these batch sizes before.
        steps, drafts: Seen so far at its depth.
        drafted_s: When the first draft was seen, at whatever batch size;
        waited_s: seconds of steps until then.
    """

    index: int
    depth: int
    started_s: float
    timed: bool = False
    steps: int = 0
    drafts: int = 0
    drafted_s: float | None = None
    waited_s: float = 0.0

    def saw(self, cells: tuple[StepCell, ...], prompts: PromptStats, batches: BatchRange, now_s: float) -> "Trial":
        """Take in a report. Where requests come and go with nearly every step, only steps with prompts show drafts."""
        mine = [cell for cell in cells if cell.depth == self.depth and batches.first <= cell.batch_size <= batches.last]
        seconds = sum(cell.seconds for cell in cells) + sum(each.seconds for each in prompts.cells)
        drafted_s = self.drafted_s
        if drafted_s is None and (any(cell.drafts for cell in cells) or any(each.verified for each in prompts.cells)):
            drafted_s = now_s
        return replace(
            self,
            steps=self.steps + sum(cell.steps for cell in mine),
            drafts=self.drafts + sum(cell.drafts for cell in mine),
            drafted_s=drafted_s,
            waited_s=self.waited_s + (0.0 if drafted_s is not None else seconds),
        )

    @property
    def saw_enough(self) -> bool:
        """Whether to end it; a step that had been timed before need not be again."""
        steps = self.timed or self.steps >= _STEPS_ENOUGH
        return steps and (self.drafts >= _DRAFTS_ENOUGH or self.depth == 0)

    def has_lasted(self, present: int, settings: DepthSettings, now_s: float) -> bool:
        """Whether to give up. From K = 0 only those who come can draft, and until one has come a trial costs little:
        so it waits for the first draft, which answers that are long and end together may hold off for long.
        """
        if present > 0:
            return now_s - self.started_s >= settings.trial_s_max
        if self.drafted_s is None:
            return self.waited_s >= settings.trial_every_s
        return now_s - self.drafted_s >= settings.trial_s_max


def next_trial(
    forecast: Forecast, index: int, present: int, off_s: float, tried: frozenset[int] = frozenset()
) -> Trial | None:
    """Return the trial to start from K = `present` where the load is; None if no depth has a chance to be better.

    `off_s` may be spent without drafts, to see what no speculation would give; depths in `tried` are left out of hope.
    """
    rungs = [rung for rung in allowed_depths(forecast, index, present) if rung != present]
    if present == 0 and _is_blind(forecast):
        best = max((rung for rung in rungs if rung), key=lambda rung: forecast.log_yield(index, rung), default=None)
        return _trial(forecast, index, best) if best is not None else None
    if forecast.acceptance.counts.drafts < _EVIDENCE_DRAFTS:
        return None
    rungs = [rung for rung in rungs if rung not in tried and (rung or not present or off_s >= 0.0)]
    hopes = {}
    for rung in rungs:
        gain = forecast.gain(index, present, rung)
        # What is accepted shows at any K that drafts.
        sds = _HOPE_SDS if forecast.cost.measured((index, rung)) else _HOPE_SDS_FIRST
        hopes[rung] = gain.log_ratio + sds * (gain.seconds_sd if present else gain.sd)
    best = max(hopes, key=hopes.__getitem__, default=None)
    hopeful = best is not None and hopes[best] > log1p(forecast.settings.gain_ratio)
    unsure = off_s >= _OFF_S and 0 in rungs and forecast.gain(index, 0, present).seconds_sd > _OFF_SD
    if unsure and not hopeful:
        best, hopeful = 0, True
    return _trial(forecast, index, best) if best is not None and hopeful else None


def _trial(forecast: Forecast, index: int, depth: int) -> Trial:
    return Trial(index, depth, forecast.now_s, forecast.cost.measured((index, depth)))


def _is_blind(forecast: Forecast) -> bool:
    """Whether no draft has been seen lately, so that the estimate tells of traffic that may be gone."""
    seen_s = forecast.acceptance.seen_s
    return seen_s is None or forecast.now_s - seen_s >= forecast.settings.blind_s
