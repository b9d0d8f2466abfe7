"""Detects impossible reports and failed predictions; then the configured static K is safer."""

from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, inf, sqrt

from peagle.router.depth.estimate.acceptance import Acceptance
from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.estimate.step_cost import cell_key, load_of
from peagle.router.depth.ladder import range_index
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import StepCell, StepStats

# Goodput below this share of its prediction is a failed prediction, if the difference exceeds chance (in standard
# errors) over a time window in seconds, with at least a minimum of measured seconds.
_GOODPUT_RATIO, _GOODPUT_ERRORS, _GOODPUT_MEMORY_S, _GOODPUT_S_MIN = 0.97, 3.0, 60.0, 15.0
# No report counts as further off than this factor: a new load is predicted badly once, then learned.
_REPORT_BOUND = 2.0
# After a change of K, first-position acceptance must not fall below this share of its earlier value by more than
# chance. The comparison takes between the minimum and maximum number of drafts, until it is conclusive, and at most
# this many seconds: a later fall comes from other prompts, not from the change.
_FIRST_RATIO, _FIRST_ERRORS, _FIRST_DRAFTS, _FIRST_S = 0.5, 3.0, (300, 2000), 30.0
# Minimum drafts for the comparison: behind the earlier estimate, and in the last report for it to count.
_FIRST_DRAFTS_BEFORE, _FIRST_DRAFTS_LATEST = 100, 20


@dataclass(frozen=True, slots=True)
class Watch:
    """First-position acceptance since a change of K. K cannot change it, so a wrong cut shows there at once."""

    before: float
    started_s: float
    drafts: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Goodput:
    """Measured over predicted tokens/s, weighted by the seconds of each report and forgotten over time.

    `ratios` and `squares` are weighted sums of the ratio and its square; `seconds`, `seconds_squared` of the weights.
    """

    seconds: float = 0.0
    seconds_squared: float = 0.0
    ratios: float = 0.0
    squares: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Mean ratio; None before any measurement."""
        return self.ratios / self.seconds if self.seconds > 0 else None

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        if self.seconds <= 0:
            return inf
        mean = self.ratios / self.seconds
        variance = max(0.0, self.squares / self.seconds - mean * mean)
        return sqrt(variance * self.seconds_squared) / self.seconds

    def observe(self, ratio: float, seconds: float) -> "Goodput":
        kept = exp(-seconds / _GOODPUT_MEMORY_S)
        return Goodput(
            self.seconds * kept + seconds,
            self.seconds_squared * kept * kept + seconds * seconds,
            self.ratios * kept + ratio * seconds,
            self.squares * kept + ratio * ratio * seconds,
        )


@dataclass(frozen=True, slots=True)
class Guard:
    """The guard's state.

    Attributes:
        hold_s: Duration of the next hold.
        watch: The comparison running after a change of K.
        goodput: How well predictions came true.
        reason: Why the static K applies; None while the guard has not tripped.
        until_s: When the rule may try again.
        trips: Number of times it has tripped.
    """

    hold_s: float
    watch: Watch | None = None
    goodput: Goodput = Goodput()
    reason: str | None = None
    until_s: float = 0.0
    trips: int = 0

    def tripped(self, reason: str, settings: DepthSettings, now_s: float) -> "Guard":
        hold_s = min(self.hold_s, settings.guard_hold_s[1])
        return Guard(hold_s=hold_s * 2.0, reason=reason, until_s=now_s + hold_s, trips=self.trips + 1)

    def released(self) -> "Guard":
        return replace(self, reason=None)

    def watching(self, before: Acceptance, cells: tuple[StepCell, ...], now_s: float) -> "Guard":
        """Start a comparison after a change of K, if none is running and there is enough evidence before the change.

        The last report counts if it was worse than the estimate, since prompts may change without a change of K.
        """
        if self.watch is not None or before.counts.drafts < _FIRST_DRAFTS_BEFORE:
            return self
        drafts, accepted = _first_drafts(cells)
        latest = accepted / drafts if drafts >= _FIRST_DRAFTS_LATEST else 1.0
        return replace(self, watch=Watch(min(latest, before.survival[0]), now_s))


def impossible(added: StepStats, depth_max: int) -> str | None:
    """Return what makes a report impossible; nothing in such a report is learned. None if it is plausible."""
    prompts = added.prompts
    if min(prompts.ended_prompt_tokens, prompts.ended_output_tokens) < 0 or any(
        min(cell.steps, cell.seconds, cell.prompt_tokens, cell.decoded, cell.verified) < 0 for cell in prompts.cells
    ):
        return "a report holds negative counts of prompts"
    for cell in added.cells:
        if any(
            len(counts) != depth_max for counts in (cell.drafted, cell.accepted, cell.tail_reached, cell.tail_matched)
        ):
            return f"a report counts {len(cell.drafted)} positions, not {depth_max}"
        if (
            min(cell.steps, cell.sequences, cell.tokens, cell.drafts, *cell.drafted, *cell.accepted) < 0
            or cell.seconds < 0
        ):
            return "a report holds negative counts"
        if any(right > all_ for right, all_ in zip(cell.accepted, cell.drafted, strict=True)):
            return "a report has more drafts accepted than drafted"
        if any(right > reached for right, reached in zip(cell.tail_matched, cell.tail_reached, strict=True)) or any(
            right > before for before, right in pairwise(cell.accepted)
        ):
            return "acceptance rises with the position, so drafts are miscounted"
    return None


def examine(guard: Guard, before: Forecast, after: Acceptance, cells: tuple[StepCell, ...]) -> tuple[Guard, str | None]:
    """Compare the report `cells` with the forecast made `before` it; `after` is the acceptance estimate including it.

    Returns the new state, and the problem if there is one.
    """
    guard = _with_goodput(_with_first(guard, cells, before.now_s), before, cells)
    watch = guard.watch
    if watch is not None and watch.drafts >= _FIRST_DRAFTS[0]:
        now = watch.accepted / watch.drafts
        error = sqrt(after.dispersion * now * (1.0 - now) / watch.drafts)
        if now + _FIRST_ERRORS * error < _FIRST_RATIO * watch.before:
            return (
                guard,
                f"acceptance of the first position fell from {watch.before:.2f} to {now:.2f} after a change of K",
            )
        if watch.drafts >= _FIRST_DRAFTS[1] or now - _FIRST_ERRORS * error > _FIRST_RATIO * watch.before:
            guard = replace(guard, watch=None)
    goodput = guard.goodput
    short = goodput.ratio is not None and goodput.ratio + _GOODPUT_ERRORS * goodput.error < _GOODPUT_RATIO
    if short and goodput.seconds >= _GOODPUT_S_MIN:
        return guard, f"goodput stays at {goodput.ratio:.2f} of its prediction"
    return guard, None


def _with_first(guard: Guard, cells: tuple[StepCell, ...], now_s: float) -> Guard:
    if guard.watch is None or now_s - guard.watch.started_s > _FIRST_S:
        return replace(guard, watch=None)
    drafts, accepted = _first_drafts(cells)
    watch = replace(guard.watch, drafts=guard.watch.drafts + drafts, accepted=guard.watch.accepted + accepted)
    return replace(guard, watch=watch)


def _first_drafts(cells: tuple[StepCell, ...]) -> tuple[int, int]:
    """Count first positions and accepted ones, including drafts cut to zero, which are the less likely ones."""
    return (
        sum(cell.drafted[0] + cell.tail_reached[0] for cell in cells),
        sum(cell.accepted[0] + cell.tail_matched[0] for cell in cells),
    )


def _with_goodput(guard: Guard, before: Forecast, cells: tuple[StepCell, ...]) -> Guard:
    """Add one report. The prediction uses the verified drafts, so it fails only if the model does."""
    coefficients = before.cost.coefficients
    seconds = predicted_s = tokens = predicted_tokens = 0.0
    for cell in cells:
        if cell.steps and cell.seconds > 0:
            key = cell_key(cell, before.settings.batch_max)
            right = sum(drafted * s for drafted, s in zip(cell.drafted, before.survival, strict=True))
            if before.shares_drafts:
                index = range_index(cell.batch_size, before.settings.batch_max)
                right = cell.drafts * before.right_drafts(index, cell.depth)
            seconds += cell.seconds
            predicted_s += cell.steps * exp(
                before.cost.log_step_s(coefficients, load_of(cell, before.settings.drafter_skipped_at_zero), key)
            )
            tokens += cell.tokens
            predicted_tokens += cell.sequences + before.delivered_ratio * right
    if seconds <= 0 or tokens <= 0:
        return guard
    ratio = tokens / seconds * predicted_s / predicted_tokens
    ratio = min(max(ratio, 1.0 / _REPORT_BOUND), _REPORT_BOUND)
    return replace(guard, goodput=guard.goodput.observe(ratio, seconds))
