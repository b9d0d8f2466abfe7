"""What an operator, a dispatcher and a metric read of a replica's depth."""

from dataclasses import dataclass
from math import exp

from peagle.router.depth.ladder import depth_ladder
from peagle.router.depth.plan import DepthChange, DepthPlan
from peagle.router.depth.rule.state import DepthState
from peagle.router.depth.settings import DepthSettings
from peagle.router.snapshot import DraftPlan, RequestRates

# Of a normal distribution, 95 % lies within so many standard deviations.
_INTERVAL_SDS = 1.96


@dataclass(frozen=True, slots=True)
class RangeView:
    """Batch sizes `batch_first` to `batch_last`: their K, and by K what is predicted.

    `measured_tokens_per_s` is of the whole batch in the last report that held these sizes; None before any.
    """

    batch_first: int
    batch_last: int
    depth: int
    predicted_tokens_per_s: dict[int, float]
    predicted_step_s: dict[int, float]
    measured_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class DepthView:
    """All that lies behind one replica's plan.

    Attributes:
        plan: Table, mode and reason, as handed out last; None before the first report.
        survival: Estimated probability that the first j + 1 drafts are all right, at index j.
        evidence_drafts: Drafts that this rests on, after forgetting.
        dispersion: Variance of reports over that of independent drafts.
        delivered_ratio: Share of accepted drafts that reach a client.
        goodput_ratio: Measured over predicted tokens/s, lately; None before any.
        shifts, fallbacks: How often prompts were seen to change, and how often the guard acted.
        probing: Whether a probe is under way.
        calibrated_points: Batch sizes and K whose steps the replica timed before its first request.
        ranges: By batch size.
        log: The last changes, oldest first.
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
    """What is expected of one replica at the batch sizes with the most load; cheap enough for every scrape.

    Attributes:
        depth_planned: K there.
        plan_version: Version of the plan's table.
        speedup_ratio: Predicted tokens/s at that K over those at K = 0, time for prompts included.
        speedup_low, speedup_high: Its interval of 95 %; both 1 at K = 0, where nothing is compared.
        predicted_tokens_per_s: Of the whole batch at that K while it decodes.
        measured_tokens_per_s: Of the last report there.
        goodput_ratio: Measured over predicted, lately; None before any.
        depth_fallbacks: How often the guard acted.
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
    """Return what is expected of a replica; None before it has shown a step, as the prior says nothing of a machine."""
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
    """Show a state; costs a few hundred predictions, so it is for whoever asks, not for every report."""
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
    """Return what a replica drafts under its present plan; None before the first step was measured."""
    return DraftPlan(state.plan.table, state.acceptance.survival) if state.plan and state.cost.steps else None


def request_tokens_per_s(state: DepthState, settings: DepthSettings, now_s: float) -> RequestRates:
    """Predict the tokens/s of one request under the present plan, at the batch size that stands for each range.

    None before the first step was measured: the prior alone says nothing of this machine.
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
