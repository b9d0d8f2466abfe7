"""The fleet as one dispatcher sees it: an immutable value, so a decision never sees a partial update."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from peagle.router.dispatch.homes import Homes
from peagle.router.snapshot import ReplicaSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """One model's replicas. Every change returns a new fleet that shares the unchanged parts.

    Attributes:
        replica_ids: Every replica that may receive requests, reported or not.
        snapshots: The last report of each, by id; absent for a replica that has not reported.
        homes: The home of each prefix.
        dispatchers: Number of processes that send to these replicas, including this one.
    """

    replica_ids: tuple[str, ...]
    snapshots: Mapping[str, ReplicaSnapshot]
    homes: Homes
    dispatchers: int = 1

    @classmethod
    def of(cls, replica_ids: Iterable[str] = ()) -> Self:
        """Return a fleet without any reports."""
        ids = tuple(dict.fromkeys(replica_ids))
        return cls(ids, {}, Homes.of(ids))

    def with_members(self, replica_ids: Iterable[str]) -> Self:
        """Return the fleet of exactly `replica_ids`; snapshots of members that stay are kept."""
        ids = tuple(dict.fromkeys(replica_ids))
        before, after = set(self.replica_ids), set(ids)
        if before == after:
            return self
        homes = self.homes.changed(joined=after - before, left=before - after)
        kept = {name: seen for name, seen in self.snapshots.items() if name in after}
        return replace(self, replica_ids=ids, snapshots=kept, homes=homes)

    def reported(self, snapshots: Iterable[ReplicaSnapshot]) -> Self:
        """Return the fleet with newer snapshots of its members; older ones and other replicas change nothing.

        Copies the table of snapshots once, so pass reports of many replicas in one call.
        """
        members, known = set(self.replica_ids), dict(self.snapshots)
        for new in snapshots:
            old = known.get(new.replica_id)
            if new.replica_id in members and (old is None or new.taken_at_s > old.taken_at_s):
                known[new.replica_id] = new
        return replace(self, snapshots=known)
