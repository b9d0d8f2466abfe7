"""The fleet as one dispatcher sees it: a frozen value, so that a decision never meets a half-applied change."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from peagle.router.dispatch.homes import Homes
from peagle.router.snapshot import ReplicaSnapshot


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """One model's replicas. Every change returns a new fleet that shares what has not changed.

    Attributes:
        replica_ids: Every replica that may be sent to, reported or not.
        snapshots: What is known of them, by id; a replica that has not reported has none.
        homes: Which of them each prefix belongs to.
        dispatchers: How many processes send to them, this one included.
    """

    replica_ids: tuple[str, ...]
    snapshots: Mapping[str, ReplicaSnapshot]
    homes: Homes
    dispatchers: int = 1

    @classmethod
    def of(cls, replica_ids: Iterable[str] = ()) -> Self:
        """Return a fleet of which nothing is known but who is in it."""
        ids = tuple(dict.fromkeys(replica_ids))
        return cls(ids, {}, Homes.of(ids))

    def with_members(self, replica_ids: Iterable[str]) -> Self:
        """Return the fleet of exactly `replica_ids`; snapshots of those that stay are kept."""
        ids = tuple(dict.fromkeys(replica_ids))
        before, after = set(self.replica_ids), set(ids)
        if before == after:
            return self
        homes = self.homes.changed(joined=after - before, left=before - after)
        kept = {name: seen for name, seen in self.snapshots.items() if name in after}
        return replace(self, replica_ids=ids, snapshots=kept, homes=homes)

    def reported(self, snapshots: Iterable[ReplicaSnapshot]) -> Self:
        """Return the fleet with newer snapshots of its members; older ones and strangers change nothing.

        It copies the table of snapshots once, so reports of many replicas belong in one call.
        """
        members, known = set(self.replica_ids), dict(self.snapshots)
        for new in snapshots:
            old = known.get(new.replica_id)
            if new.replica_id in members and (old is None or new.taken_at_s > old.taken_at_s):
                known[new.replica_id] = new
        return replace(self, snapshots=known)
