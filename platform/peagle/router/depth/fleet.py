"""All replicas of one model: who reports, what each one's plan is, and what operators decide about them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from peagle.router.depth.plan import DepthPlan
from peagle.router.depth.settings import DepthLimits, DepthSettings
from peagle.router.depth.state import DepthState, fleet_prior, start
from peagle.router.depth.tuner import step
from peagle.router.depth.view import DepthEstimate, DepthView, estimate, request_tokens_per_s, view
from peagle.router.snapshot import StepReport

FORGET_AFTER_S = 120.0
"""A replica that has been silent for this long is gone."""


@dataclass(slots=True)
class ModelDepths:
    """Keeps the depth rule's state of each replica; everything that it decides comes from `step`.

    A new replica starts from what the others have learned. Limits of a replica win over those of the model.
    """

    settings: DepthSettings
    limits: DepthLimits = field(default_factory=DepthLimits)
    _states: dict[str, DepthState] = field(default_factory=dict)
    _limits: dict[str, DepthLimits] = field(default_factory=dict)
    _heard_s: dict[str, float] = field(default_factory=dict)

    @property
    def replicas(self) -> Iterable[str]:
        """Whoever has reported lately."""
        return self._states.keys()

    def report(self, replica_id: str, report: StepReport, now_s: float) -> DepthPlan:
        """Take in a report; return the replica's plan.

        Args:
            replica_id: Who reports.
            report: What its engine added to its sums.
            now_s: The caller's clock, monotonic and the same in every call.
        """
        self._forget(now_s)
        settings = self._settings_of(replica_id)
        state = self._states.get(replica_id)
        if state is None:
            state = start(settings, fleet_prior(self._states.values(), settings))
        self._states[replica_id], plan = step(state, report, settings, now_s)
        self._heard_s[replica_id] = now_s
        return plan

    def limits_of(self, replica_id: str) -> DepthLimits:
        return self._limits.get(replica_id, self.limits)

    def limit(self, limits: DepthLimits | None, replica_id: str | None = None) -> None:
        """Set what an operator decides, for a replica or for all without limits of their own; None takes it back."""
        if replica_id is None:
            self.limits = limits or DepthLimits()
        elif limits is None:
            self._limits.pop(replica_id, None)
        else:
            self._limits[replica_id] = limits

    def view(self, replica_id: str, now_s: float) -> DepthView | None:
        """What lies behind a replica's plan; None for one that does not report."""
        state = self._states.get(replica_id)
        return view(state, self._settings_of(replica_id), now_s) if state is not None else None

    def estimates(self, now_s: float) -> dict[str, DepthEstimate]:
        """What is expected of each replica that has shown a step."""
        found = {
            replica_id: estimate(state, self._settings_of(replica_id), now_s)
            for replica_id, state in self._states.items()
        }
        return {replica_id: each for replica_id, each in found.items() if each is not None}

    def request_tokens_per_s(self, replica_id: str, now_s: float) -> tuple[float, ...]:
        """What one request gets at each batch size under the replica's plan; empty where that is not known."""
        state = self._states.get(replica_id)
        return request_tokens_per_s(state, self._settings_of(replica_id), now_s) if state is not None else ()

    def _settings_of(self, replica_id: str) -> DepthSettings:
        return replace(self.settings, limits=self.limits_of(replica_id))

    def _forget(self, now_s: float) -> None:
        for silent in [each for each, heard_s in self._heard_s.items() if now_s - heard_s > FORGET_AFTER_S]:
            del self._heard_s[silent], self._states[silent]
            self._limits.pop(silent, None)
