"""The depth rule: takes one report of one replica, returns its plan. Replica, simulator and tests all call it."""

from dataclasses import replace
from typing import TypeVar

from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.ladder import batch_ranges, range_index
from peagle.router.depth.plan import Cause, DepthChange, DepthPlan, Mode
from peagle.router.depth.rule import guard as guards
from peagle.router.depth.rule.choice import together, wish
from peagle.router.depth.rule.publish import WITH_THE_LOAD, Why, by_batch_size, publish, publish_uniform
from peagle.router.depth.rule.state import DepthState, calibrate, learn, learn_prompts, unlearned
from peagle.router.depth.rule.trial import Trial, next_trial
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import DepthTable, PromptStats, StepCell, StepReport

# Batch ranges without load are reconsidered once in this many reports.
_TURNS = 3

Item = TypeVar("Item")


def step(state: DepthState, report: StepReport, settings: DepthSettings, now_s: float) -> tuple[DepthState, DepthPlan]:
    """Decide the depths of one replica. A silent replica gets no new plan and keeps its last.

    Args:
        state: The result of the last call, or `start(...)`.
        report: The replica's report.
        settings: May change between calls; limits take effect at once.
        now_s: The caller's clock, monotonic and the same in every call.

    Returns:
        The state for the next call, and the plan to apply. The plan's version rises only if its depths change, and
        then exceeds the version that the replica applies.
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
        # Log the evidence that the guard used; the rule continues without it.
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
    return _decide(state, cells, report.added.prompts, settings, now_s, report.added.table)


def _until(wrong: str, settings: DepthSettings, left_s: float) -> str:
    return f"{wrong}; K = {_static(settings)} as configured for {left_s:.0f} s more"


def _decide(
    state: DepthState,
    cells: tuple[StepCell, ...],
    prompts: PromptStats,
    settings: DepthSettings,
    now_s: float,
    applied: DepthTable,
) -> tuple[DepthState, DepthPlan]:
    """Choose by what controls the table: an operator's pin or pause, the guard, or the learned estimates."""
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
    causes: dict[int, Why] = {}
    state, ended = _watch_trial(state, forecast, cells, prompts, causes)
    # At a replica's first report a restarted Router knows too little to change the table.
    adopted = state.reports == 1 and applied.version > 0
    if (cells or prompts.cells) and not adopted:
        loaded = {range_index(cell.batch_size, settings.batch_max) for cell in cells}
        state = _move(state, forecast, loaded, ended, causes)
        state = _start_trial(state, forecast, loaded, causes)
    tried = state.depths
    mode, reason = Mode.ADAPTIVE, "the depths with the most predicted tokens/s"
    if state.trial is not None:
        tried = _with(tried, state.trial.index, state.trial.depth)
        mode, reason = Mode.PROBING, f"trying K = {state.trial.depth} at batch {forecast.ranges[state.trial.index]}"
    depths = together(forecast, tried, state.main)
    with_the_load = (index for index, depth in enumerate(depths) if depth != tried[index])
    causes |= dict.fromkeys(with_the_load, WITH_THE_LOAD)
    state, plan = publish(state, depths, mode, reason, causes, forecast, applied)
    if state.trial is not None:
        untried = together(forecast, state.depths, state.main)
        plan = replace(plan, untried=by_batch_size(untried, settings.batch_max))
        state = replace(state, plan=plan)
    drafting = (change for change in plan.changes if change.depth_before and change.depth_after)
    if any(_holds(change, state.main, forecast) for change in drafting):
        state = replace(state, guard=state.guard.watching(state.acceptance, cells, now_s))
    return state, plan


def _paused(state: DepthState, forecast: Forecast) -> tuple[DepthState, tuple[int, ...]]:
    """Return the current table within the operator's bounds; without a running trial."""
    assert state.plan is not None
    untried = state.plan.untried
    table = state.plan.table if untried is None else replace(state.plan.table, depths=untried)
    held = [table.depth_at(batches.at) for batches in forecast.ranges]
    rungs = forecast.settings.rungs
    kept = tuple(min(max(depth, rungs[0]), rungs[-1]) for depth in held)
    return replace(state, trial=None), kept


def _holds(change: DepthChange, index: int | None, forecast: Forecast) -> bool:
    """Return whether a change affects the batch sizes where the load is."""
    return index is not None and change.batch_first <= forecast.ranges[index].at <= change.batch_last


def _watch_trial(
    state: DepthState, forecast: Forecast, cells: tuple[StepCell, ...], prompts: PromptStats, causes: dict[int, Why]
) -> tuple[DepthState, Trial | None]:
    """Observe the trial, or end it. A trial that ends is returned, so that the rule can use its result."""
    if state.trial is None:
        return state, None
    index = state.trial.index
    trial = state.trial.saw(cells, prompts, forecast.ranges[index], forecast.now_s)
    if state.main != index:
        # Without load in this range the trial learns nothing more; it has not shown that its depth is worse.
        causes[index] = Why(Cause.PROBE_REVERTED, "the load has moved to other batch sizes")
    elif trial.saw_enough or trial.has_lasted(state.depths[index], forecast.settings, forecast.now_s):
        said = "it is not better" if trial.saw_enough else "too few drafts to tell"
        causes[index] = Why(Cause.PROBE_REVERTED, said)
    else:
        return replace(state, trial=trial), None
    return replace(state, trial=None), trial


def _move(
    state: DepthState, forecast: Forecast, loaded: set[int], ended: Trial | None, causes: dict[int, Why]
) -> DepthState:
    """Give every batch range without a running trial its best depth."""
    depths, trials_left = list(state.depths), list(state.trials_left)
    for index, before in enumerate(depths):
        # Ranges with load are reconsidered in every report; the others take turns, which bounds the work.
        idle = index not in loaded and (index + state.reports) % _TURNS
        if idle or (state.trial is not None and state.trial.index == index):
            continue
        if (wished := wish(forecast, index, before)) is None:
            continue
        depths[index] = wished.depth
        if wished.depth == 0:
            # At K = 0 acceptance is no longer observed, so schedule a trial soon.
            trials_left[index] = max(1.0, trials_left[index])
        causes[index] = Why(Cause.GAIN, f"{wished.gain.ratio:.1%} more tokens/s predicted at K = {wished.depth}")
        if wished.forced:
            causes[index] = Why(Cause.LATENCY, "the step takes longer than the inter-token target")
        elif ended is not None and ended.index == index:
            causes[index] = Why(Cause.PROBE_ADOPTED, "it proved better in the trial", before=before)
    return replace(state, depths=tuple(depths), trials_left=tuple(trials_left))


def _start_trial(state: DepthState, forecast: Forecast, loaded: set[int], causes: dict[int, Why]) -> DepthState:
    """Start a trial of another depth where the load is, if one is worthwhile."""
    index = state.main
    if state.trial is not None or index not in loaded or index is None or index in causes:
        return state
    present, left, tried = state.depths[index], state.trials_left[index], state.tried[index]
    if left < 1.0:
        return state
    if (trial := next_trial(forecast, index, present, state.off_s, tried)) is None:
        # A depth that was tried already may be tried again, but less often.
        trial, left = next_trial(forecast, index, present, state.off_s), 1.0
    if trial is None:
        return state
    # Trials to and from K = 0 are expensive: requests that run at K = 0 stop drafting, and only new ones draft.
    left = max(0.0, left - (1.0 if present else 2.0)) if trial.depth else 0.0
    causes[index] = Why(Cause.PROBE, f"trial of K = {trial.depth}")
    return replace(
        state,
        trial=trial,
        trials_left=_with(state.trials_left, index, left),
        tried=_with(state.tried, index, tried | {trial.depth}),
    )


def _adopted(state: DepthState, report: StepReport, settings: DepthSettings) -> DepthState:
    """Start from the replica's current table, without trials, so that a restarted tuner changes no plan."""
    table = report.added.table
    own = table if report.untried is None else replace(table, depths=report.untried)
    depths = tuple(_on_ladder(own.depth_at(batches.at), settings) for batches in batch_ranges(settings.batch_max))
    plan = DepthPlan(table, Mode.ADAPTIVE, "the replica's previous plan")
    return replace(state, depths=depths, plan=plan)


def _within_limits(state: DepthState, settings: DepthSettings) -> DepthState:
    lost = state.trial is not None and _on_ladder(state.trial.depth, settings) != state.trial.depth
    depths = tuple(_on_ladder(depth, settings) for depth in state.depths)
    return replace(state, depths=depths, trial=None if lost else state.trial)


def _on_ladder(depth: int, settings: DepthSettings) -> int:
    """Return the deepest rung within the operator's bounds that is at most `depth`, or else the lowest rung."""
    rungs = settings.rungs
    return max((rung for rung in rungs if rung <= depth), default=rungs[0])


def _static(settings: DepthSettings) -> int:
    rungs = settings.rungs
    return min(max(settings.depth_static, rungs[0]), rungs[-1])


def _with(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])
