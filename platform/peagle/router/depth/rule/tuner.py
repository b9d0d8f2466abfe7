"""The rule itself: one report of one replica in, its plan out. Replica, simulator and tests call the same function."""

from dataclasses import replace
from typing import TypeVar

from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.ladder import batch_ranges, range_index
from peagle.router.depth.plan import Cause, DepthChange, DepthPlan, Mode
from peagle.router.depth.rule import guard as guards
from peagle.router.depth.rule import patience
from peagle.router.depth.rule.probe import PROBE_CHANGES, Probe, ProbeKind, next_probe, proves_better
from peagle.router.depth.rule.publish import WITH_THE_LOAD, Causes, Why, by_batch_size, publish, publish_uniform
from peagle.router.depth.rule.state import DepthState, calibrate, learn, learn_prompts, unlearned
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import DepthTable, StepCell, StepReport

# Batch ranges without load follow their wish in every so many reports.
_TURNS = 3

Item = TypeVar("Item")


def step(state: DepthState, report: StepReport, settings: DepthSettings, now_s: float) -> tuple[DepthState, DepthPlan]:
    """Decide the depths of one replica. One that is silent gets no plan, and keeps the last.

    Args:
        state: What the last call returned, or `start(...)`.
        report: What the replica says.
        settings: May change between calls; limits take effect at once.
        now_s: The caller's clock, monotonic and the same in every call.

    Returns:
        What to pass next time, and the plan to apply. Its version rises only if its depths change, and is above the
        one that the replica applies.
    """
    if state.plan is None:
        state = calibrate(_adopted(state, report, settings), report.calibration, settings, now_s)
    wrong = guards.impossible(report.added, settings.depth_max)
    cells = () if wrong else tuple(cell for cell in report.added.cells if cell.batch_size > 0)
    before = state.forecast(settings, now_s)
    if cells:
        state = learn(state, cells, settings, now_s)
        watched, found = guards.examine(state.guard, before, state.acceptance, cells)
        state, wrong = replace(state, guard=watched), wrong or found
    if not wrong:
        state = learn_prompts(state, report.added.prompts)
    state = replace(state, reported_s=now_s, reports=state.reports + 1)
    if state.guard.reason is not None and now_s >= state.guard.until_s:
        state = replace(state, guard=state.guard.released())
    governed_by_rule = settings.limits.pin is None and not settings.limits.paused
    if wrong and governed_by_rule and state.guard.reason is None:
        tripped = replace(state, guard=state.guard.tripped(wrong, settings, now_s))
        static, reason = _static(settings), _until(wrong, settings, tripped.guard.until_s - now_s)
        # Logged with what the guard went by, which the rule begins without from here on.
        told, plan = publish_uniform(
            _within_limits(tripped, settings),
            static,
            Mode.FALLBACK,
            reason,
            Cause.GUARD,
            state.forecast(settings, now_s),
            report.added.table,
        )
        return replace(unlearned(told, settings, now_s), plan=plan), plan
    state = _within_limits(state, settings)
    return _decide(state, cells, settings, now_s, report.added.table)


def _until(wrong: str, settings: DepthSettings, left_s: float) -> str:
    return f"{wrong}; K = {_static(settings)} as configured for {left_s:.0f} s more"


def _decide(
    state: DepthState, cells: tuple[StepCell, ...], settings: DepthSettings, now_s: float, applied: DepthTable
) -> tuple[DepthState, DepthPlan]:
    """Choose by what governs: an operator's pin or pause, the guard, or what is learned."""
    forecast = state.forecast(settings, now_s)
    if settings.limits.pin is not None:
        pin = min(max(settings.limits.pin, 0), settings.depth_max)
        return publish_uniform(state, pin, Mode.PINNED, f"an operator pinned K = {pin}", Cause.PIN, forecast, applied)
    if settings.limits.paused:
        state, kept = _paused(state, forecast)
        return publish(state, kept, Mode.PAUSED, "an operator paused it; the table stays", {}, forecast, applied)
    if state.guard.reason is not None:
        reason = _until(state.guard.reason, settings, state.guard.until_s - now_s)
        return publish_uniform(state, _static(settings), Mode.FALLBACK, reason, Cause.GUARD, forecast, applied)
    causes: Causes = {}
    state, causes = _judge_probe(state, forecast, cells, causes)
    if cells:
        loaded = {range_index(cell.batch_size, settings.batch_max) for cell in cells}
        state, causes = _move(state, forecast, loaded, causes)
        state, causes = _start_probe(state, forecast, loaded, causes)
    own = tuple(one.depth for one in state.ranges)
    tried = own
    mode, reason = Mode.ADAPTIVE, "the depths that promise the most tokens/s"
    if state.probe is not None:
        tried = _with(own, state.probe.index, state.probe.depth)
        mode, reason = Mode.PROBING, f"trying K = {state.probe.depth} at batch {forecast.ranges[state.probe.index]}"
    depths = patience.together(forecast, tried, state.main)
    with_the_load = (index for index, depth in enumerate(depths) if depth != tried[index])
    causes = {**causes, **dict.fromkeys(with_the_load, WITH_THE_LOAD)}
    state, plan = publish(state, depths, mode, reason, causes, forecast, applied)
    if state.probe is not None:
        untried = patience.together(forecast, own, state.main)
        plan = replace(plan, untried=by_batch_size(untried, settings.batch_max))
        state = replace(state, plan=plan)
    drafting = (change for change in plan.changes if change.depth_before and change.depth_after)
    if any(_holds(change, state.main, forecast) for change in drafting):
        state = replace(state, guard=state.guard.watching(state.acceptance, cells, now_s))
    return state, plan


def _paused(state: DepthState, forecast: Forecast) -> tuple[DepthState, tuple[int, ...]]:
    """The table as it is, within the operator's bounds; a probe is no table to stay at."""
    assert state.plan is not None
    untried = state.plan.untried
    table = state.plan.table if untried is None else replace(state.plan.table, depths=untried)
    held = [table.depth_at(batches.at) for batches in forecast.ranges]
    rungs = forecast.settings.rungs
    kept = tuple(min(max(depth, rungs[0]), rungs[-1]) for depth in held)
    return replace(state, probe=None), kept


def _holds(change: DepthChange, index: int | None, forecast: Forecast) -> bool:
    """Whether a change reaches the batch sizes where the load is."""
    return index is not None and change.batch_first <= forecast.ranges[index].at <= change.batch_last


def _judge_probe(
    state: DepthState, forecast: Forecast, cells: tuple[StepCell, ...], causes: Causes
) -> tuple[DepthState, Causes]:
    """Keep the probed depth, return from it, or look on."""
    if state.probe is None:
        return state, causes
    settings, now_s = forecast.settings, forecast.now_s
    index = state.probe.index
    trial = state.probe.saw(cells, forecast.ranges[index], now_s)
    present = state.ranges[index]
    if state.main != index:
        # Nothing more to be learned here, and nothing against the depth.
        return replace(state, probe=None), {**causes, index: Why(Cause.PROBE_REVERTED, "the load has moved on")}
    judged = bool(cells) and trial.saw_enough
    better = judged and proves_better(forecast, index, present.depth, trial.depth)
    trial = replace(trial, confirmations=trial.confirmations - 1) if better else trial
    if better and trial.confirmations > 0:
        return replace(state, probe=trial), causes
    if better:
        ranges = _with(state.ranges, index, patience.moved(present, trial.depth, settings, trial.started_s))
        clocks = _with(state.clocks, index, state.clocks[index].after(trial, True, settings))
        why = Why(Cause.PROBE_ADOPTED, "it proved better while it was tried", before=present.depth)
        return replace(state, probe=None, ranges=ranges, clocks=clocks), {**causes, index: why}
    if judged or trial.has_lasted(present.depth, settings, now_s):
        clocks = _with(state.clocks, index, state.clocks[index].after(trial, False, settings))
        if trial.kind is ProbeKind.WISHED:
            # Else a wish that each trial disappoints would start one trial after the other.
            state = replace(state, ranges=_with(state.ranges, index, patience.charged(present, 1.0, settings, now_s)))
        said = "it is not better" if trial.saw_enough else "too little was drafted to tell"
        return replace(state, probe=None, clocks=clocks), {**causes, index: Why(Cause.PROBE_REVERTED, said)}
    return replace(state, probe=trial), causes


def _move(state: DepthState, forecast: Forecast, loaded: set[int], causes: Causes) -> tuple[DepthState, Causes]:
    """Let every batch range that is not being probed follow its wish, if it may."""
    settings, now_s = forecast.settings, forecast.now_s
    ranges = list(state.ranges)
    for index, before in enumerate(ranges):
        # Where the load is, every report counts; elsewhere ranges take turns, which bounds the work.
        idle = index not in loaded and (index + state.reports) % _TURNS
        probed = state.probe is not None and state.probe.index == index
        if idle or probed or _just_adopted(index, causes):
            continue
        wished = patience.wish(forecast, index, before.depth)
        noted = ranges[index] = patience.note(before, wished)
        if wished is None:
            continue
        # A target that is broken now does not wait for a change to be due.
        at_once = wished.forced and wished.depth < before.depth
        if not (at_once or patience.may_move(noted, settings, now_s)):
            continue
        if before.depth == 0 and wished.depth > 0 and index == state.main:
            # Off a K of 0 by a trial, since rung by rung the first ones cost a draft and win little.
            if state.probe is None and index in loaded:
                state, causes = _probing(state, Probe(index, wished.depth, 1, now_s, ProbeKind.WISHED), causes)
            continue
        # One that drafts with the load goes on from there.
        handed_out = state.plan.table.depth_at(forecast.ranges[index].at) if state.plan and before.depth == 0 else 0
        depth = min(wished.depth, handed_out) or patience.next_depth(forecast, index, before.depth, wished.depth)
        ranges[index] = patience.moved(noted, depth, settings, now_s)
        why = Why(Cause.GAIN, f"{wished.gain.ratio:.1%} more tokens/s predicted at K = {wished.depth}")
        if wished.forced:
            why = Why(Cause.LATENCY, "the step takes longer than the inter-token target")
        causes = {**causes, index: why}
    return replace(state, ranges=tuple(ranges)), causes


def _start_probe(state: DepthState, forecast: Forecast, loaded: set[int], causes: Causes) -> tuple[DepthState, Causes]:
    """Try another depth where the load is, if it is time and one is worth it."""
    index, settings, now_s = state.main, forecast.settings, forecast.now_s
    if state.probe is not None or index is None or index not in loaded:
        return state, causes
    present = patience.refilled(state.ranges[index], settings, now_s)
    settled = state.cost.measured((index, present.depth)) and not present.seen
    if not settled or _just_adopted(index, causes):
        return state, causes
    trial = next_probe(forecast, index, present.depth, state.clocks[index], present.allowance)
    if trial is None:
        return state, causes
    if trial.kind in (ProbeKind.DUE, ProbeKind.DOUBTED):
        paid = patience.charged(present, PROBE_CHANGES, settings, now_s)
        state = replace(state, ranges=_with(state.ranges, index, paid))
    return _probing(state, trial, causes)


def _just_adopted(index: int, causes: Causes) -> bool:
    return index in causes and causes[index].cause is Cause.PROBE_ADOPTED


def _probing(state: DepthState, trial: Probe, causes: Causes) -> tuple[DepthState, Causes]:
    timed = state.cost.measured((trial.index, trial.depth))
    return replace(state, probe=replace(trial, timed=timed)), {
        **causes,
        trial.index: Why(Cause.PROBE, f"to see what K = {trial.depth} yields"),
    }


def _adopted(state: DepthState, report: StepReport, settings: DepthSettings) -> DepthState:
    """Start from what the replica applies now, trials aside: a tuner that was lost and comes back changes no plan."""
    table = report.added.table
    own = table if report.untried is None else replace(table, depths=report.untried)
    ranges = tuple(
        replace(one, depth=_on_ladder(own.depth_at(batches.at), settings))
        for one, batches in zip(state.ranges, batch_ranges(settings.batch_max), strict=True)
    )
    plan = DepthPlan(table, Mode.ADAPTIVE, "as the replica had it")
    return replace(state, ranges=ranges, plan=plan)


def _within_limits(state: DepthState, settings: DepthSettings) -> DepthState:
    ranges = tuple(
        one if (depth := _on_ladder(one.depth, settings)) == one.depth else replace(one, depth=depth, wanted=0, seen=0)
        for one in state.ranges
    )
    lost = state.probe is not None and _on_ladder(state.probe.depth, settings) != state.probe.depth
    return replace(state, ranges=ranges, probe=None if lost else state.probe)


def _on_ladder(depth: int, settings: DepthSettings) -> int:
    """The deepest rung within the operator's bounds that is not above `depth`, or the lowest."""
    rungs = settings.rungs
    return max((rung for rung in rungs if rung <= depth), default=rungs[0])


def _static(settings: DepthSettings) -> int:
    rungs = settings.rungs
    return min(max(settings.depth_static, rungs[0]), rungs[-1])


def _with(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
