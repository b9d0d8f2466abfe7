"""Short trials of another depth where the load is, to learn what reports at the current depth cannot show.

At K = 0 nothing is drafted, so reports never show that drafting would pay again. And a depth with an uncertain step
time may be better than predicted. A trial lasts one or two reports; then the rule chooses as usual."""

from dataclasses import dataclass, replace
from math import log1p

from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.ladder import BatchRange
from peagle.router.depth.rule.choice import allowed_depths
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import PromptStats, StepCell

# Steps and drafts that a trial must observe before it ends.
_STEPS_ENOUGH, _DRAFTS_ENOUGH = 12, 60
# A depth is worth a trial if it might be better at this many standard deviations above its expected value; more of
# them if its step was never timed.
_HOPE_SDS, _HOPE_SDS_FIRST = 1.5, 2.0
# K = 0 is also tried if its step time is less certain than this, since the reported speedup depends on it, once this
# many seconds may be spent on it.
_OFF_SD, _OFF_S = 0.06, 0.5
# No optimistic trial before the estimate rests on this many drafts; before that, almost any depth might be better.
_EVIDENCE_DRAFTS = 200.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A running trial in batch range `index`.

    Attributes:
        depth: K during the trial.
        started_s: When it began.
        timed: Whether a step at its depth and batch sizes had been timed before.
        steps, drafts: Observed so far at its depth.
        drafted_s: When the first draft was observed, at any batch size.
        waited_s: Seconds of steps until then.
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
        """Observe a report. If the batch changes at nearly every step, only steps with prompts show drafts."""
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
        """Whether it may end; steps that had been timed before need not be timed again."""
        steps = self.timed or self.steps >= _STEPS_ENOUGH
        return steps and (self.drafts >= _DRAFTS_ENOUGH or self.depth == 0)

    def has_lasted(self, present: int, settings: DepthSettings, now_s: float) -> bool:
        """Return whether to give up.

        From K = 0 only new requests draft, and until one arrives a trial costs little. So it waits for the first draft,
        which may take long while long answers run.
        """
        if present > 0:
            return now_s - self.started_s >= settings.trial_s_max
        if self.drafted_s is None:
            return self.waited_s >= settings.trial_every_s
        return now_s - self.drafted_s >= settings.trial_s_max


def next_trial(
    forecast: Forecast, index: int, present: int, off_s: float, tried: frozenset[int] = frozenset()
) -> Trial | None:
    """Return the trial to start from K = `present` where the load is; None if no depth may be better.

    `off_s` seconds may be spent without drafts, to measure a step without speculation. Optimistic trials exclude the
    depths in `tried`.
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
        # Acceptance is observed at any K above 0.
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
    """Return whether no draft was observed lately, so that the estimate may describe past traffic."""
    seen_s = forecast.acceptance.seen_s
    return seen_s is None or forecast.now_s - seen_s >= forecast.settings.blind_s
