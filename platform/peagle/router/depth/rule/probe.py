"""Short visits to another depth, to learn what reports at the present one cannot tell.

At K = 0 nothing is drafted, so nothing would ever show that drafting pays again; and a depth that was never tried may
be better than the prior thinks. A probe brings evidence for a report or two. If the depth proves better it is kept;
else the range returns, and the next probe is a long wait away: never a permanent off, at a bounded price.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import log1p

from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.ladder import BatchRange
from peagle.router.depth.rule.patience import allowed_depths, sure
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import StepCell

# What a probe must have seen before it is judged; where the depth's step is known already, so many drafts do.
_STEPS_MIN, _DRAFTS_MIN, _DRAFTS_ENOUGH = 12, 30, 100
# A depth is worth a probe if it might be better, this many standard deviations above what is expected. K = 0 gets more
# while it was never measured: it is a step of another kind, of which measuring other depths tells little.
_HOPE_SDS, _HOPE_SDS_OFF = 2.0, 3.0
# No depth is tried in hope before the estimate rests on so many drafts; before that, anything may seem possible.
_EVIDENCE_DRAFTS = 200.0
# Each probe is two changes of K, and is paid for as such out of what the range may change; by the clock or in hope only
# if one more change stays possible, by which a depth that was kept by mistake can be left again.
PROBE_CHANGES = 2.0


class ProbeKind(StrEnum):
    """What asks for a probe.

    A depth was never measured, and is expected to be better, or is not but may be; or the clock says that it is time;
    or K is 0 and a range wishes to draft again.
    """

    FIRST = "first"
    DOUBTED = "doubted"
    DUE = "due"
    WISHED = "wished"


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe under way in batch range `index`.

    Attributes:
        depth: K in the meantime.
        confirmations: Reports in which it must still prove better.
        started_s: When it began.
        kind: What asked for it.
        timed: Whether a step at its depth had been timed at these batch sizes before.
        steps, drafts: Seen so far at its depth.
        drafted_s: When the first draft was seen, at whatever batch size;
        waited_s: seconds of steps until then.
    """

    index: int
    depth: int
    confirmations: int
    started_s: float
    kind: ProbeKind
    timed: bool = False
    steps: int = 0
    drafts: int = 0
    drafted_s: float | None = None
    waited_s: float = 0.0

    def saw(self, cells: tuple[StepCell, ...], batches: BatchRange, now_s: float) -> "Probe":
        mine = [cell for cell in cells if cell.depth == self.depth and batches.first <= cell.batch_size <= batches.last]
        seen = replace(
            self,
            steps=self.steps + sum(cell.steps for cell in mine),
            drafts=self.drafts + sum(cell.drafts for cell in mine),
        )
        if self.drafted_s is not None:
            return seen
        if any(cell.drafts for cell in cells):
            return replace(seen, drafted_s=now_s)
        return replace(seen, waited_s=self.waited_s + sum(cell.seconds for cell in cells))

    def has_lasted(self, present: int, settings: DepthSettings, now_s: float) -> bool:
        """Whether to give up. From K = 0 only those who come can draft, and until one has come a trial costs little:
        so it waits for the first draft, which answers that are long and end together may hold off for long.
        """
        if present > 0:
            return now_s - self.started_s >= settings.probe_s_max
        if self.drafted_s is None:
            return self.waited_s >= settings.probe_wait_s[1]
        return now_s - self.drafted_s >= settings.probe_s_max

    @property
    def saw_enough(self) -> bool:
        if self.timed and self.drafts >= _DRAFTS_ENOUGH:
            return True
        return self.steps >= _STEPS_MIN and (self.drafts >= _DRAFTS_MIN or self.depth == 0)


@dataclass(frozen=True, slots=True)
class ProbeClock:
    """When the next probe of a batch range is due.

    It runs only while that range has the load: else a load that comes for seconds and goes would pay for a probe each
    time.

    Attributes:
        wait_s: Between two probes.
        left_s: Until the next one.
        tried: Depths that had one.
    """

    wait_s: float
    left_s: float
    tried: frozenset[int] = frozenset()

    @classmethod
    def start(cls, settings: DepthSettings) -> "ProbeClock":
        return cls(settings.probe_wait_s[0], settings.probe_wait_s[0])

    @property
    def is_due(self) -> bool:
        return self.left_s <= 0.0

    def ran(self, seconds: float) -> "ProbeClock":
        return replace(self, left_s=max(0.0, self.left_s - seconds))

    def after(self, probe: Probe, better: bool, settings: DepthSettings) -> "ProbeClock":
        tried = self.tried | {probe.depth}
        if probe.kind is not ProbeKind.DUE:
            return replace(self, tried=tried)
        wait_s = self.wait_s if better else settings.probe_wait_s[1]
        return ProbeClock(wait_s, wait_s, tried)

    def anew(self, settings: DepthSettings) -> "ProbeClock":
        """The prompts have changed, so what the last probes found no longer counts."""
        wait_s = settings.probe_wait_s[0]
        return ProbeClock(wait_s, min(self.left_s, wait_s), self.tried)


def next_probe(forecast: Forecast, index: int, present: int, clock: ProbeClock, allowance: float) -> Probe | None:
    """Return the probe to start from `present`; None if no depth has a chance to be better, or it is not time.

    A depth that was never measured at these batch sizes is tried at once, so that the best one is found within seconds
    of a new load; later visits wait for the clock. From K = 0 one that is expected to be worse is paid for, since such
    trials are slow and would follow one another: who runs has nothing to verify, and only those who come will draft.
    """
    now_s, rungs = forecast.now_s, [rung for rung in allowed_depths(forecast, index, present) if rung != present]
    affordable = allowance >= PROBE_CHANGES + 1.0
    due = clock.is_due and affordable
    confirmations = forecast.settings.confirmations
    if due and present == 0 and _is_blind(forecast):
        rungs = [rung for rung in rungs if rung > 0]
        best = max(rungs, key=lambda rung: forecast.log_yield(index, rung), default=None)
        return Probe(index, best, confirmations, now_s, ProbeKind.DUE) if best is not None else None
    if forecast.acceptance.counts.drafts < _EVIDENCE_DRAFTS or allowance < 1.0:
        return None
    untried = [rung for rung in rungs if rung not in clock.tried and not forecast.cost.measured((index, rung))]
    best, kind = _most_hopeful(forecast, index, present, untried, _HOPE_SDS_OFF), ProbeKind.FIRST
    if best is not None and present == 0 and forecast.gain(index, present, best).log_ratio <= 0.0:
        best, kind = (best if affordable else None), ProbeKind.DOUBTED
    if best is None and due:
        best, kind = _most_hopeful(forecast, index, present, rungs, _HOPE_SDS), ProbeKind.DUE
    return Probe(index, best, confirmations, now_s, kind) if best is not None else None


def _most_hopeful(forecast: Forecast, index: int, present: int, rungs: list[int], off_sds: float) -> int | None:
    hopes = {}
    for rung in rungs:
        gain = forecast.gain(index, present, rung)
        hopes[rung] = gain.log_ratio + (_HOPE_SDS if rung else off_sds) * gain.sd
    best = max(hopes, key=hopes.__getitem__, default=None)
    return best if best is not None and hopes[best] > log1p(forecast.settings.gain_ratio) else None


def proves_better(forecast: Forecast, index: int, present: int, depth: int) -> bool:
    """Whether a depth that has been measured surely promises the least gain over the present one."""
    allowed = depth in allowed_depths(forecast, index, present)
    return allowed and sure(forecast.gain(index, present, depth), present, depth) > log1p(forecast.settings.gain_ratio)


def _is_blind(forecast: Forecast) -> bool:
    """Whether no draft has been seen lately, so that the estimate tells of traffic that may be gone."""
    seen_s = forecast.acceptance.seen_s
    return seen_s is None or forecast.now_s - seen_s >= forecast.settings.probe_wait_s[0]
