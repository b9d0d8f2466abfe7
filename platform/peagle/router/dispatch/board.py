"""The Router's data for a model's dispatchers: each replica's newest snapshot, and the number of dispatchers."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from peagle.router.dispatch.draft_record import DraftRecord, EndedDrafts
from peagle.router.rates import FleetRates
from peagle.router.snapshot import ReplicaSnapshot

REPLICA_GONE_AFTER_S = 30.0
DISPATCHER_GONE_AFTER_S = 5.0
BUSY_FOR_S = 30.0
"""How long a dispatcher counts as busy after its last open request. A burst reaches all dispatchers before any of them
has reported its requests. A dispatcher that did not count the others would send all to the fastest replica."""
RATES_EVERY_S = 0.5
"""Interval between updates of the fleet's mean rates; a replica reports at the same interval."""


@dataclass(frozen=True, slots=True)
class DispatcherReport:
    """A dispatcher's report, sent when it asks for news.

    Attributes:
        dispatcher_id: Its unique name.
        open_requests: Requests that it has sent and that have not ended.
    """

    dispatcher_id: str
    open_requests: int = 0


@dataclass(frozen=True, slots=True)
class FleetNews:
    """The Router's answer: every replica's newest snapshot.

    Rates with little evidence are drawn towards the fleet's mean. Each `taken_at_s` is relative to this answer, so none
    is above 0. `dispatchers` counts those with open requests lately, including the asking one. `right_ratios` are the
    ratios of accepted drafts, by kind of request.
    """

    dispatchers: int
    snapshots: tuple[ReplicaSnapshot, ...]
    right_ratios: Mapping[int, float] = field(default_factory=dict)

    def received(self, now_s: float) -> tuple[ReplicaSnapshot, ...]:
        """Return the snapshots on the clock of the reader, which received this at `now_s`."""
        return tuple(replace(each, taken_at_s=now_s + each.taken_at_s) for each in self.snapshots)


@dataclass(slots=True)
class Board:
    """One model's replicas and dispatchers. Times are seconds on one monotonic clock of the caller."""

    _reported: dict[str, ReplicaSnapshot] = field(default_factory=dict)
    _levelled: dict[str, ReplicaSnapshot] = field(default_factory=dict)
    _rates: FleetRates = field(default_factory=FleetRates)
    _rates_at_s: float = -math.inf
    _heard_at_s: dict[str, float] = field(default_factory=dict)
    _busy_at_s: dict[str, float] = field(default_factory=dict)
    _drafts: DraftRecord = field(default_factory=DraftRecord)
    _right_ratios: Mapping[int, float] = field(default_factory=dict)

    def report(self, snapshot: ReplicaSnapshot, now_s: float, ended: Iterable[EndedDrafts] = ()) -> None:
        """Store a snapshot just received from a replica, and the drafts of requests that have ended there."""
        self._drafts.add(ended, now_s)
        self._reported[snapshot.replica_id] = snapshot
        if now_s - self._rates_at_s >= RATES_EVERY_S:
            self._rates, self._rates_at_s = FleetRates(self._reported.values()), now_s
            self._right_ratios = self._drafts.known(now_s)
        self._levelled[snapshot.replica_id] = replace(self._rates.levelled(snapshot), taken_at_s=now_s)

    def news(self, dispatcher: DispatcherReport, now_s: float) -> FleetNews:
        """Store a dispatcher's report; return what it needs to decide."""
        self._forget(now_s)
        self._heard_at_s[dispatcher.dispatcher_id] = now_s
        if dispatcher.open_requests:
            self._busy_at_s[dispatcher.dispatcher_id] = now_s
        busy = len(self._busy_at_s.keys() - {dispatcher.dispatcher_id})
        aged = (replace(each, taken_at_s=each.taken_at_s - now_s) for each in self._levelled.values())
        return FleetNews(1 + busy, tuple(aged), self._right_ratios)

    def _forget(self, now_s: float) -> None:
        for name, seen in list(self._levelled.items()):
            if now_s - seen.taken_at_s > REPLICA_GONE_AFTER_S:
                del self._levelled[name], self._reported[name]
        for name, at_s in list(self._heard_at_s.items()):
            if now_s - at_s > DISPATCHER_GONE_AFTER_S:
                del self._heard_at_s[name]
        for name, at_s in list(self._busy_at_s.items()):
            if now_s - at_s > BUSY_FOR_S or name not in self._heard_at_s:
                del self._busy_at_s[name]
