"""State of the depth rule for one replica, and how it learns from a report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from peagle.router.depth.estimate import acceptance, prompt_cost, step_cost
from peagle.router.depth.estimate.acceptance import Acceptance
from peagle.router.depth.estimate.busy import Busy
from peagle.router.depth.estimate.forecast import Forecast
from peagle.router.depth.estimate.prompt_cost import PromptCost
from peagle.router.depth.estimate.sharing import Sharing
from peagle.router.depth.estimate.step_cost import StepCost
from peagle.router.depth.ladder import batch_ranges, range_index
from peagle.router.depth.plan import DepthChange, DepthPlan
from peagle.router.depth.rule.guard import Guard
from peagle.router.depth.rule.trial import Trial
from peagle.router.depth.settings import AcceptancePrior, DepthSettings
from peagle.router.snapshot import PromptStats, StepCell, StepTime

LOG_MAX = 64
"""Changes kept in the log."""

_FLEET_DRAFTS = 50.0
# Share of time for trials of K = 0, and the most seconds that may be saved up for them.
_OFF_RATIO, _OFF_S_MAX = 0.005, 1.0
# Half-life of delivered drafts, and the number that count as delivered at the start.
_DELIVERY_HALF_LIFE_S, _DELIVERY_PRIOR = 60.0, 50.0


@dataclass(frozen=True, slots=True)
class Delivery:
    """Accepted drafts, and those that reached a client: the end of an answer cuts off the rest of its last step."""

    accepted: float = _DELIVERY_PRIOR
    delivered: float = _DELIVERY_PRIOR

    @property
    def ratio(self) -> float:
        return self.delivered / self.accepted

    def observe(self, cells: Iterable[StepCell], elapsed_s: float) -> "Delivery":
        accepted = delivered = 0.0
        for cell in cells:
            right = sum(cell.accepted)
            accepted += right
            delivered += min(max(cell.tokens - cell.sequences, 0), right)
        kept = 0.5 ** (elapsed_s / _DELIVERY_HALF_LIFE_S)
        more = max(0.0, _DELIVERY_PRIOR - self.accepted * kept - accepted)
        return Delivery(self.accepted * kept + accepted + more, self.delivered * kept + delivered + more)


@dataclass(frozen=True, slots=True)
class FleetPrior:
    """What the replicas of one model have learned together, as the start of a new replica."""

    acceptance: AcceptancePrior
    cost: StepCost
    prompts: PromptCost


@dataclass(frozen=True, slots=True)
class DepthState:
    """Everything that the rule keeps between two reports of a replica. Immutable.

    Attributes:
        acceptance, cost, delivery, prompts, sharing: Learned estimates.
        guard: Whether to trust them.
        depths: K by batch range, in the order of `batch_ranges`, without trials.
        trials_left, tried: By batch range, how many trials may start now, and which depths were tried since traffic
            last changed.
        off_s: Request-seconds that may run without drafts where the plan drafts: a share of the time, less the time
            of trials at K = 0 and of requests that stopped drafting because of them.
        trial: The running trial.
        busy: Where the load is.
        measured: Tokens/s of the last report for each batch range that was measured.
        calibration: Step times that the replica measured before its first request.
        plan: The last published plan; None before the first.
        reported_s: Time of the last usable report; `reports` counts them.
        log: The last `LOG_MAX` changes, oldest first.
    """

    acceptance: Acceptance
    cost: StepCost
    delivery: Delivery
    sharing: Sharing
    guard: Guard
    depths: tuple[int, ...]
    trials_left: tuple[float, ...]
    tried: tuple[frozenset[int], ...]
    prompts: PromptCost = field(default_factory=PromptCost)
    off_s: float = 0.0
    trial: Trial | None = None
    busy: Busy = field(default_factory=Busy)
    measured: Mapping[int, float] = field(default_factory=dict)
    calibration: tuple[StepTime, ...] = ()
    plan: DepthPlan | None = None
    reported_s: float | None = None
    reports: int = 0
    log: tuple[DepthChange, ...] = ()

    @property
    def main(self) -> int | None:
        """The batch range with the load; None before the first step."""
        return self.busy.main

    def forecast(self, settings: DepthSettings, now_s: float) -> Forecast:
        return Forecast(self.acceptance, self.cost, self.prompts, self.sharing, self.delivery.ratio, settings, now_s)


def start(settings: DepthSettings, fleet: FleetPrior | None = None) -> DepthState:
    """Return the state of a replica that has not reported yet."""
    return DepthState(
        acceptance=Acceptance.start(fleet.acceptance if fleet else settings.acceptance),
        cost=step_cost.relearned(fleet.cost) if fleet else StepCost.start(settings.cost),
        prompts=fleet.prompts if fleet else PromptCost(),
        delivery=Delivery(),
        sharing=Sharing.start(settings.depth_max),
        guard=Guard(hold_s=settings.guard_hold_s[0]),
        depths=(settings.depth_static,) * len(batch_ranges(settings.batch_max)),
        trials_left=(settings.trials_at_once,) * len(batch_ranges(settings.batch_max)),
        tried=(frozenset[int](),) * len(batch_ranges(settings.batch_max)),
    )


def fleet_prior(states: Iterable[DepthState], settings: DepthSettings) -> FleetPrior | None:
    """Return what a model's replicas have learned together; None if there is nothing.

    Acceptance is pooled, since it belongs to the model and its traffic. Step and prompt times are those of the most
    experienced replica, since machines differ; the new replica corrects them over time.
    """
    usable = [state for state in states if state.guard.reason is None and state.cost.steps]
    if not usable:
        return None
    pooled = acceptance.pooled((state.acceptance for state in usable), settings.acceptance, _FLEET_DRAFTS)
    most = max(usable, key=lambda state: state.cost.steps)
    return FleetPrior(pooled, most.cost, most.prompts)


def calibrate(state: DepthState, times: tuple[StepTime, ...], settings: DepthSettings, now_s: float) -> DepthState:
    """Learn from the steps that the replica timed before its first request."""
    skipped = settings.drafter_skipped_at_zero
    cost = step_cost.calibrated(state.cost, times, settings.batch_max, skipped, now_s)
    return replace(state, cost=cost, calibration=times)


def learn_prompts(state: DepthState, added: PromptStats) -> DepthState:
    """Learn from the prompts of one report."""
    return replace(state, prompts=prompt_cost.observe(state.prompts, added, state.cost))


def learn(state: DepthState, cells: tuple[StepCell, ...], settings: DepthSettings, now_s: float) -> DepthState:
    """Learn from the cells of one report."""
    elapsed_s = max(0.0, now_s - state.reported_s) if state.reported_s is not None else 0.0
    counts = acceptance.counts_of(cells, settings.depth_max)
    learned = acceptance.observe(state.acceptance, counts, settings.half_life_drafts, now_s)
    seconds: dict[int, float] = {}
    tokens: dict[int, int] = {}
    for cell in cells:
        index = range_index(cell.batch_size, settings.batch_max)
        seconds[index] = seconds.get(index, 0.0) + cell.seconds
        tokens[index] = tokens.get(index, 0) + cell.tokens
    measured = {index: tokens[index] / seconds[index] for index in seconds if seconds[index] > 0}
    # After a change of traffic, results of earlier trials no longer count.
    shifted = learned.shifts != state.acceptance.shifts
    trials_left = tuple(
        settings.trials_at_once
        if shifted
        else min(max(left, 1.0), left + seconds.get(index, 0.0) / settings.trial_every_s)
        for index, left in enumerate(state.trials_left)
    )
    return replace(
        state,
        acceptance=learned,
        cost=step_cost.observe(state.cost, cells, settings.batch_max, settings.drafter_skipped_at_zero, now_s),
        delivery=state.delivery.observe(cells, elapsed_s),
        sharing=state.sharing.observe(cells),
        trials_left=trials_left,
        tried=(frozenset[int](),) * len(trials_left) if shifted else state.tried,
        off_s=_off_s(state, cells, settings),
        busy=state.busy.observe({index: seconds[index] for index in measured}, now_s),
        measured={**state.measured, **measured},
    )


def _off_s(state: DepthState, cells: tuple[StepCell, ...], settings: DepthSettings) -> float:
    left_s = state.off_s
    for cell in cells:
        left_s += _OFF_RATIO * cell.seconds
        if state.depths[range_index(cell.batch_size, settings.batch_max)]:
            off = cell.rested / max(1, cell.sequences) if cell.depth else 1.0
            left_s -= off * cell.seconds
    return min(left_s, _OFF_S_MAX)


def unlearned(state: DepthState, settings: DepthSettings, now_s: float) -> DepthState:
    """Return the state without the estimates that the guard distrusts; the ranges start from the static K."""
    fresh = calibrate(start(settings), state.calibration, settings, now_s)
    return replace(
        fresh,
        guard=state.guard,
        busy=state.busy,
        measured=state.measured,
        plan=state.plan,
        reported_s=state.reported_s,
        reports=state.reports,
        log=state.log,
    )
