"""Turns depths by batch range into a versioned table and records every change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from math import exp

from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.ladder import batch_ranges
from peagle.router.depth.plan import Cause, DepthChange, DepthInputs, DepthPlan, Mode
from peagle.router.depth.rule.state import LOG_MAX, DepthState
from peagle.router.snapshot import DepthTable


@dataclass(frozen=True, slots=True)
class Why:
    """Why a batch range changes: cause, text, and the previous depth if the table no longer shows it."""

    cause: Cause
    detail: str
    before: int | None = None


WITH_THE_LOAD = Why(Cause.LOAD, "drafting switched on or off, as in the loaded batch range")

Causes = Mapping[int, Why]
"""By batch range."""


def publish_uniform(
    state: DepthState, depth: int, mode: Mode, reason: str, cause: Cause, forecast: Forecast, applied: DepthTable
) -> tuple[DepthState, DepthPlan]:
    """Publish one K for every batch size; the ranges keep their own K for later."""
    depths = (depth,) * len(forecast.ranges)
    causes = dict.fromkeys(range(len(depths)), Why(cause, reason))
    return publish(replace(state, trial=None), depths, mode, reason, causes, forecast, applied)


def publish(
    state: DepthState,
    depths: tuple[int, ...],
    mode: Mode,
    reason: str,
    causes: Causes,
    forecast: Forecast,
    applied: DepthTable,
) -> tuple[DepthState, DepthPlan]:
    """Publish `depths`, one for each batch range.

    The version rises with every change, and exceeds any version that the replica has from another Router.
    """
    assert state.plan is not None
    batch_max, held = forecast.settings.batch_max, state.plan.table
    table = held
    by_request = forecast.shares_drafts and mode is not Mode.FALLBACK
    wanted = by_batch_size(depths, batch_max), by_request
    if wanted != _whole(held, batch_max):
        table = DepthTable(max(held.version, applied.version) + 1, *wanted)
    elif _whole(applied, batch_max) == wanted and applied.version >= held.version:
        table = applied
    elif applied.version >= held.version:
        table = DepthTable(applied.version + 1, *wanted)
    kept = any(why.before is not None for why in causes.values())
    changes = _changes(state, held, table, causes, forecast) if kept or table.depths != held.depths else ()
    plan = DepthPlan(table, mode, reason, changes)
    return replace(state, plan=plan, log=(*state.log, *changes)[-LOG_MAX:]), plan


def inputs_of(state: DepthState, forecast: Forecast, index: int, before: int, after: int) -> DepthInputs:
    """Collect the evidence for `after` over `before` at batch range `index`."""
    gain = forecast.gain(index, before, after)
    return DepthInputs(
        survival=forecast.survival,
        evidence_drafts=state.acceptance.counts.drafts,
        dispersion=state.acceptance.dispersion,
        delivered_ratio=forecast.delivered_ratio,
        step_s=(forecast.step_s(index, before), forecast.step_s(index, after)),
        tokens_per_s=(forecast.tokens_per_s(index, before), forecast.tokens_per_s(index, after)),
        prompt_s=(forecast.prompt_s(before), forecast.prompt_s(after)),
        gain_ratio=gain.ratio,
        gain_sd=exp(gain.log_ratio) * gain.sd,
        measured_tokens_per_s=state.measured.get(index),
    )


def _changes(
    state: DepthState, held: DepthTable, table: DepthTable, causes: Causes, forecast: Forecast
) -> tuple[DepthChange, ...]:
    """Return one record for each run of batch ranges with the same change."""
    back = state.plan is not None and state.plan.mode in (Mode.PINNED, Mode.PAUSED, Mode.FALLBACK)
    resumed = Why(Cause.RESUMED, "back to the learned depths") if back else None
    limits = Why(Cause.LIMITS, "an operator's limits")

    def kind(index: int) -> tuple[int, int, Why]:
        at = forecast.ranges[index].at
        before = held.depth_at(at)
        # A range within the bounds and without a cause of its own no longer has to follow the loaded range.
        why = causes.get(index) or resumed or (WITH_THE_LOAD if before in forecast.settings.rungs else limits)
        return before if why.before is None else why.before, table.depth_at(at), why

    changes = []
    for (before, after, why), run in groupby(range(len(forecast.ranges)), key=kind):
        alike = list(run)
        if before == after:
            continue
        shown = state.main if state.main in alike else alike[0]
        changes.append(
            DepthChange(
                at_s=forecast.now_s,
                version=table.version,
                batch_first=forecast.ranges[alike[0]].first,
                batch_last=forecast.ranges[alike[-1]].last,
                depth_before=before,
                depth_after=after,
                cause=why.cause,
                detail=why.detail,
                inputs=inputs_of(state, forecast, shown, before, after),
            )
        )
    return tuple(changes)


@lru_cache(maxsize=256)
def by_batch_size(depths: tuple[int, ...], batch_max: int) -> tuple[int, ...]:
    """Return K by batch size from K by batch range. No step has a batch of 0; its entry repeats that of 1."""
    ranges = batch_ranges(batch_max)
    spread = (k for batches, k in zip(ranges, depths, strict=True) for k in [k] * (batches.last - batches.first + 1))
    return (depths[0], *spread)


@lru_cache(maxsize=256)
def _whole(table: DepthTable, batch_max: int) -> tuple[tuple[int, ...], bool]:
    return tuple(table.depth_at(batch_size) for batch_size in range(batch_max + 1)), table.by_request
