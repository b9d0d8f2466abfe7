"""One process's dispatcher: the fleet that it knows and its open requests, kept consistent with each other."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from peagle.router.dispatch.decision import LIMITS, Limits, Route, Shed, decide
from peagle.router.dispatch.fleet import Fleet
from peagle.router.dispatch.in_flight import InFlight
from peagle.router.dispatch.policies.soonest import SOONEST
from peagle.router.dispatch.policy import Policy
from peagle.router.snapshot import ReplicaSnapshot, RouteRequest


class Dispatcher:
    """Dispatches one model's requests. Not thread-safe: it belongs to one event loop.

    Times are seconds on one monotonic clock of the caller; a snapshot's `taken_at_s` is on the same clock.
    """

    def __init__(self, policy: Policy = SOONEST, limits: Limits = LIMITS) -> None:
        self._policy, self._limits = policy, limits
        self._in_flight = InFlight()
        self._fleet = Fleet.of()
        self._right_ratios: Mapping[int, float] = {}

    @property
    def fleet(self) -> Fleet:
        return self._fleet

    @property
    def open_requests(self) -> int:
        return self._in_flight.open_requests

    def set_members(self, replica_ids: Iterable[str]) -> None:
        """Set the fleet to exactly `replica_ids`; requests in flight to other replicas are forgotten."""
        self._fleet = self._fleet.with_members(replica_ids)
        self._in_flight.retain(set(self._fleet.replica_ids))

    def set_dispatchers(self, count: int) -> None:
        """Set the number of processes that send to this fleet, at least 1 for this process."""
        self._fleet = replace(self._fleet, dispatchers=count)

    def set_right_ratios(self, right_ratios: Mapping[int, float]) -> None:
        """Set the ratio of accepted drafts, by kind of request."""
        self._right_ratios = right_ratios

    def report(self, snapshots: Iterable[ReplicaSnapshot]) -> None:
        """Store newer snapshots; pass many in one call."""
        self._fleet = self._fleet.reported(snapshots := tuple(snapshots))
        for replica_id in {each.replica_id for each in snapshots}:
            if (newest := self._fleet.snapshots.get(replica_id)) is not None:
                self._in_flight.reported(replica_id, newest.taken_at_s)

    def dispatch(self, request: RouteRequest, now_s: float, draw: int) -> Route | Shed:
        """Decide, and count the request in flight at once, since the next decision may come before it is sent.

        A request that is decided again has not been sent, so its earlier decision no longer counts.
        """
        self._in_flight.forgotten(request.request_id)
        if (kind := next((each for each in request.kinds if each in self._right_ratios), None)) is not None:
            request = replace(request, right_ratio=self._right_ratios[kind])
        decision = decide(request, self._fleet, self._in_flight, now_s, draw, self._policy, self._limits)
        if isinstance(decision, Route):
            self._in_flight.started(request, decision.replica_id, now_s)
        return decision

    def moved(self, request: RouteRequest, replica_id: str, now_s: float) -> None:
        """Record where a dispatched request went, which may differ from the decision."""
        if self._in_flight.where(request.request_id) != replica_id:
            self._in_flight.started(request, replica_id, now_s)

    def where(self, request_id: str) -> str | None:
        """Return the replica at which an open request is counted."""
        return self._in_flight.where(request_id)

    def forgotten(self, request_id: str) -> None:
        """Record that a request was never sent."""
        self._in_flight.forgotten(request_id)

    def ended(self, request_id: str, now_s: float, at: str | None = None) -> None:
        """Record that a request has ended; with `at`, only if it is open at that replica."""
        self._in_flight.ended(request_id, now_s, at)
