"""The depth rule for all replicas of one model: their states, plans, and the operators' limits."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from peagle.router.depth.plan import DepthPlan
from peagle.router.depth.rule.state import DepthState, FleetPrior, fleet_prior, start
from peagle.router.depth.rule.tuner import step
from peagle.router.depth.settings import DepthLimits, DepthSettings, StandingLimits
from peagle.router.depth.view import DepthEstimate, DepthView, draft_plan, estimate, request_tokens_per_s, view
from peagle.router.snapshot import DraftPlan, PromptStats, RequestRates, StepReport

FORGET_AFTER_S = 120.0
"""Silence after which a replica counts as gone, in seconds."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """Time of a replica's last report, and the number of the reading in it."""

    at_s: float
    reading: int


@dataclass(slots=True)
class ModelDepths:
    """Keeps the depth rule's state of each replica; every decision comes from `step`.

    A new replica starts from what the others have learned, even if these are gone. Limits of a replica override those
    of the model. If this object is lost, both kinds of limits come back with the replicas' reports.
    """

    settings: DepthSettings
    _model_limits: DepthLimits | None = None
    _decided: bool = False
    _states: dict[str, DepthState] = field(default_factory=dict)
    _limits: dict[str, DepthLimits] = field(default_factory=dict)
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _learned: FleetPrior | None = None

    @property
    def replicas(self) -> Iterable[str]:
        """Replicas that have reported recently."""
        return self._states.keys()

    def report(
        self, replica_id: str, report: StepReport, now_s: float, standing: StandingLimits | None = None
    ) -> DepthPlan:
        """Learn from a report and return the replica's plan.

        Args:
            replica_id: The reporting replica.
            report: What its engine added to its sums.
            now_s: The caller's clock, monotonic and the same in every call.
            standing: The limits of the replica's last plan; used if no newer limits are known.
        """
        self._forget(now_s)
        state, heard = self._states.get(replica_id), self._heard.get(replica_id)
        if state is None and standing is not None:
            self._recall(replica_id, standing)
        settings = self._settings_of(replica_id)
        if state is None:
            state = start(settings, fleet_prior(self._states.values(), settings) or self._learned)
        if heard is not None and report.since < heard.reading:
            # The last answer arrived too late to count, so this report repeats what was learned then.
            report = replace(report, added=replace(report.added, cells=(), prompts=PromptStats()))
        self._states[replica_id], plan = step(state, report, settings, now_s)
        self._heard[replica_id] = _Heard(now_s, report.reading)
        return replace(plan, standing=StandingLimits(self._model_limits, self._limits.get(replica_id)))

    def limits_of(self, replica_id: str) -> DepthLimits:
        return self._limits.get(replica_id, self._model_limits or DepthLimits())

    def _recall(self, replica_id: str, standing: StandingLimits) -> None:
        if not self._decided and standing.model is not None:
            self._model_limits = standing.model
        if replica_id not in self._limits and standing.replica is not None:
            self._limits[replica_id] = standing.replica

    def limit(self, limits: DepthLimits | None, replica_id: str | None = None) -> None:
        """Set an operator's limits, for a replica or for all without limits of their own; None removes them."""
        if replica_id is None:
            self._model_limits, self._decided = limits, True
        elif limits is None:
            self._limits.pop(replica_id, None)
        else:
            self._limits[replica_id] = limits

    def view(self, replica_id: str, now_s: float) -> DepthView | None:
        """Show the state behind a replica's plan; None if the replica is unknown."""
        state = self._states.get(replica_id)
        return view(state, self._settings_of(replica_id), now_s) if state is not None else None

    def estimates(self, now_s: float) -> dict[str, DepthEstimate]:
        """Expected performance of each replica with a measured step."""
        found = {
            replica_id: estimate(state, self._settings_of(replica_id), now_s)
            for replica_id, state in self._states.items()
        }
        return {replica_id: each for replica_id, each in found.items() if each is not None}

    def request_tokens_per_s(self, replica_id: str, now_s: float) -> RequestRates:
        """Tokens/s of one request under the replica's plan; empty if unknown."""
        state = self._states.get(replica_id)
        return (
            request_tokens_per_s(state, self._settings_of(replica_id), now_s) if state is not None else RequestRates()
        )

    def draft_plan(self, replica_id: str) -> DraftPlan | None:
        """What a replica drafts; None if unknown."""
        state = self._states.get(replica_id)
        return draft_plan(state) if state is not None else None

    def _settings_of(self, replica_id: str) -> DepthSettings:
        return replace(self.settings, limits=self.limits_of(replica_id))

    def _forget(self, now_s: float) -> None:
        gone = [each for each, heard in self._heard.items() if now_s - heard.at_s > FORGET_AFTER_S]
        if gone and len(gone) == len(self._states):
            self._learned = fleet_prior(self._states.values(), self.settings) or self._learned
        for silent in gone:
            del self._heard[silent], self._states[silent]
            self._limits.pop(silent, None)
