"""What the Router keeps for a model's dispatchers: each replica's newest snapshot, and who else dispatches."""

from dataclasses import dataclass, field, replace

from peagle.router.snapshot import ReplicaSnapshot

REPLICA_GONE_AFTER_S = 30.0
DISPATCHER_GONE_AFTER_S = 5.0
BUSY_FOR_S = 30.0
"""As long as replicas remember how fast they were. Requests that come at one moment come to all dispatchers, and none
has told of its own yet: one that did not count the others would send all to whichever replica seemed fastest."""


@dataclass(frozen=True, slots=True)
class DispatcherReport:
    """What a dispatcher says of itself when it asks.

    Attributes:
        dispatcher_id: A name of its own.
        open_requests: Requests that it has sent and that are not over.
    """

    dispatcher_id: str
    open_requests: int = 0


@dataclass(frozen=True, slots=True)
class FleetNews:
    """The answer: every replica's newest snapshot. Their `taken_at_s` count from this answer, so none is above 0.

    `dispatchers` have had requests open lately, the one that asks included.
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
    _heard_at_s: dict[str, float] = field(default_factory=dict)
    _busy_at_s: dict[str, float] = field(default_factory=dict)

    def report(self, snapshot: ReplicaSnapshot, now_s: float) -> None:
        """Take a replica's snapshot, just received."""
        self._snapshots[snapshot.replica_id] = replace(snapshot, taken_at_s=now_s)

    def news(self, dispatcher: DispatcherReport, now_s: float) -> FleetNews:
        """Take a dispatcher's report; answer with what it needs to decide."""
        self._forget(now_s)
        self._heard_at_s[dispatcher.dispatcher_id] = now_s
        if dispatcher.open_requests:
            self._busy_at_s[dispatcher.dispatcher_id] = now_s
        busy = len(self._busy_at_s.keys() - {dispatcher.dispatcher_id})
        aged = (replace(each, taken_at_s=each.taken_at_s - now_s) for each in self._snapshots.values())
        return FleetNews(1 + busy, tuple(aged))

    def _forget(self, now_s: float) -> None:
        for name, seen in list(self._snapshots.items()):
            if now_s - seen.taken_at_s > REPLICA_GONE_AFTER_S:
                del self._snapshots[name]
        for name, at_s in list(self._heard_at_s.items()):
            if now_s - at_s > DISPATCHER_GONE_AFTER_S:
                del self._heard_at_s[name]
        for name, at_s in list(self._busy_at_s.items()):
            if now_s - at_s > BUSY_FOR_S or name not in self._heard_at_s:
                del self._busy_at_s[name]
