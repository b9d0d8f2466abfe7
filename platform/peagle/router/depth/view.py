"""Read-only views of a replica's depth, for operators, dispatchers and metrics."""

from dataclasses import dataclass
from math import exp

from peagle.router.depth.ladder import depth_ladder
from peagle.router.depth.plan import DepthChange, DepthPlan
from peagle.router.depth.rule.state import DepthState
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import DraftPlan, RequestRates

# Half-width of the 95 % interval of a normal distribution, in standard deviations.
_INTERVAL_SDS = 1.96


@dataclass(frozen=True, slots=True)
class RangeView:
    """K for batch sizes `batch_first` to `batch_last`, with the predictions for each K.

    `measured_tokens_per_s` covers the whole batch in the last report with these sizes; None before such a report.
    """

    batch_first: int
    batch_last: int
    depth: int
    predicted_tokens_per_s: dict[int, float]
    predicted_step_s: dict[int, float]
    measured_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class DepthView:
    """The state behind one replica's plan.

    Attributes:
        plan: The latest table, mode and reason; None before the first report.
        survival: Estimated probability that the first j + 1 drafts are all accepted, at index j.
        evidence_drafts: Drafts behind this estimate, after forgetting.
        dispersion: Variance of reports over that of independent drafts.
        delivered_ratio: Share of accepted drafts that reach a client.
        goodput_ratio: Recent measured over predicted tokens/s; None before any measurement.
        shifts, fallbacks: Number of detected changes of traffic, and of guard trips.
        probing: Whether a trial is running.
        calibrated_points: Number of (batch size, K) pairs that the replica timed before its first request.
        ranges: Predictions by batch size.
        log: The latest changes, oldest first.
    """

    plan: DepthPlan | None
    survival: tuple[float, ...]
    evidence_drafts: float
    dispersion: float
    delivered_ratio: float
    goodput_ratio: float | None
    shifts: int
    fallbacks: int
    probing: bool
    calibrated_points: int
    ranges: tuple[RangeView, ...]
    log: tuple[DepthChange, ...]


@dataclass(frozen=True, slots=True)
class DepthEstimate:
    """Expected performance of one replica at its busiest batch range; cheap enough for every scrape.

    Attributes:
        depth_planned: K planned at that batch range.
        plan_version: Version of the plan's table.
        speedup_ratio: Predicted tokens/s at that K over those at K = 0, including time for prompts.
        speedup_low, speedup_high: 95 % interval of the speedup; both 1 at K = 0, where nothing is compared.
        predicted_tokens_per_s: Predicted decode tokens/s of the whole batch at that K.
        measured_tokens_per_s: Measured in the last report for that batch range.
        goodput_ratio: Recent measured over predicted tokens/s; None before any measurement.
        depth_fallbacks: Number of guard trips.
    """

    depth_planned: int
    plan_version: int
    speedup_ratio: float
    speedup_low: float
    speedup_high: float
    predicted_tokens_per_s: float
    measured_tokens_per_s: float
    goodput_ratio: float | None
    depth_fallbacks: int


def estimate(state: DepthState, settings: DepthSettings, now_s: float) -> DepthEstimate | None:
    """Estimate a replica's performance; None before its first measured step: a prior does not know the machine."""
    if state.plan is None or state.main is None:
        return None
    forecast = state.forecast(settings, now_s)
    depth = state.plan.table.depth_at(forecast.ranges[state.main].at)
    predicted = forecast.tokens_per_s(state.main, depth)
    gain = forecast.gain(state.main, 0, depth)
    return DepthEstimate(
        depth_planned=depth,
        plan_version=state.plan.table.version,
        speedup_ratio=exp(gain.log_ratio),
        speedup_low=exp(gain.log_ratio - _INTERVAL_SDS * gain.sd),
        speedup_high=exp(gain.log_ratio + _INTERVAL_SDS * gain.sd),
        predicted_tokens_per_s=predicted,
        measured_tokens_per_s=state.measured[state.main],
        goodput_ratio=state.guard.goodput.ratio,
        depth_fallbacks=state.guard.trips,
    )


def view(state: DepthState, settings: DepthSettings, now_s: float) -> DepthView:
    """Show a state. Costs a few hundred predictions, so call it on demand, not for every report."""
    forecast = state.forecast(settings, now_s)
    rungs = depth_ladder(settings.depth_max, static=settings.depth_static)
    return DepthView(
        plan=state.plan,
        survival=forecast.survival,
        evidence_drafts=state.acceptance.counts.drafts,
        dispersion=state.acceptance.dispersion,
        delivered_ratio=forecast.delivered_ratio,
        goodput_ratio=state.guard.goodput.ratio,
        shifts=state.acceptance.shifts,
        fallbacks=state.guard.trips,
        probing=state.trial is not None,
        calibrated_points=len(state.calibration),
        ranges=tuple(
            RangeView(
                batch_first=batches.first,
                batch_last=batches.last,
                depth=state.plan.table.depth_at(batches.at) if state.plan else settings.depth_static,
                predicted_tokens_per_s={rung: forecast.tokens_per_s(index, rung) for rung in rungs},
                predicted_step_s={rung: forecast.step_s(index, rung) for rung in rungs},
                measured_tokens_per_s=state.measured.get(index),
            )
            for index, batches in enumerate(forecast.ranges)
        ),
        log=state.log,
    )


def draft_plan(state: DepthState) -> DraftPlan | None:
    """Return what a replica drafts under its current plan; None before the first measured step."""
    return DraftPlan(state.plan.table, state.acceptance.survival) if state.plan and state.cost.steps else None


def request_tokens_per_s(state: DepthState, settings: DepthSettings, now_s: float) -> RequestRates:
    """Predict the tokens/s of one request under the current plan, at the representative batch size of each range.

    Empty before the first measured step, since the prior alone does not know the machine.
    """
    if state.plan is None or not state.cost.steps:
        return RequestRates()
    forecast = state.forecast(settings, now_s)
    depth_at = state.plan.table.depth_at
    return RequestRates.of(
        {
            batches.at: forecast.tokens_per_s(index, depth_at(batches.at)) / batches.at
            for index, batches in enumerate(forecast.ranges)
        }
    )
