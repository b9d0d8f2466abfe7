"""What the Router keeps for a model's dispatchers: each replica's newest snapshot, and who else dispatches."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from peagle.router.snapshot import ReplicaSnapshot

REPLICA_GONE_AFTER_S = 30.0
DISPATCHER_SILENT_AFTER_S = 5.0
DISPATCHER_GONE_AFTER_S = 600.0
"""One that comes back after that has its decisions counted twice, so it is long."""


@dataclass(frozen=True, slots=True)
class DispatcherReport:
    """What a dispatcher says of itself when it asks.

    Attributes:
        dispatcher_id: A name of its own.
        open_requests: Requests that it has sent and that are not over.
        decisions: How many it has decided since it began, by reason.
    """

    dispatcher_id: str
    open_requests: int = 0
    decisions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetNews:
    """The answer: every replica's newest snapshot. Their `taken_at_s` count from this answer, so none is above 0.

    `dispatchers` have requests open now, the one that asks included.
    """

    dispatchers: int
    snapshots: tuple[ReplicaSnapshot, ...]

    def received(self, now_s: float) -> tuple[ReplicaSnapshot, ...]:
        """Return the snapshots on the clock of the reader, who received this at `now_s`."""
        return tuple(replace(each, taken_at_s=now_s + each.taken_at_s) for each in self.snapshots)


@dataclass(slots=True)
class Board:
    """One model's replicas and dispatchers. Times are seconds on one monotonic clock of the caller's."""

    _snapshots: dict[str, ReplicaSnapshot] = field(default_factory=dict)
    _dispatchers: dict[str, tuple[float, DispatcherReport]] = field(default_factory=dict)
    _decided_by_gone: Counter[str] = field(default_factory=Counter)

    def report(self, snapshot: ReplicaSnapshot, now_s: float) -> None:
        """Take a replica's snapshot, just received."""
        self._snapshots[snapshot.replica_id] = replace(snapshot, taken_at_s=now_s)

    def news(self, dispatcher: DispatcherReport, now_s: float) -> FleetNews:
        """Take a dispatcher's report; answer with what it needs to decide."""
        self._forget(now_s)
        self._dispatchers[dispatcher.dispatcher_id] = now_s, dispatcher
        busy = sum(
            1
            for at_s, each in self._dispatchers.values()
            if each.open_requests
            and each.dispatcher_id != dispatcher.dispatcher_id
            and now_s - at_s <= DISPATCHER_SILENT_AFTER_S
        )
        aged = (replace(each, taken_at_s=each.taken_at_s - now_s) for each in self._snapshots.values())
        return FleetNews(1 + busy, tuple(aged))

    @property
    def decisions(self) -> Counter[str]:
        """All dispatchers' decisions by reason, of those that have gone too: a counter must not fall."""
        total = Counter(self._decided_by_gone)
        for _, report in self._dispatchers.values():
            total.update(report.decisions)
        return total

    def _forget(self, now_s: float) -> None:
        for name, seen in list(self._snapshots.items()):
            if now_s - seen.taken_at_s > REPLICA_GONE_AFTER_S:
                del self._snapshots[name]
        for name, (at_s, report) in list(self._dispatchers.items()):
            if now_s - at_s > DISPATCHER_GONE_AFTER_S:
                self._decided_by_gone.update(report.decisions)
                del self._dispatchers[name]
