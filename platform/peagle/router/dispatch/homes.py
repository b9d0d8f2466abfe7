"""Assigns prefixes and sessions to replicas, so that every dispatcher sends them to the same warm cache.

Keys fall into a fixed number of slots. Each slot ranks the replicas by rendezvous hashing and keeps the first few. A
decision reads one row, however large the fleet. The ranking is only computed when a replica joins or leaves, and a
leaving replica moves only the slots whose home it was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Self, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Functions import numpy themselves: it takes longer to load than everything else that the CLI needs from this package.
Words: TypeAlias = "npt.NDArray[np.uint64]"

# Many enough that each of 100 replicas is home to 41 ± 6 of them; a power of two.
SLOTS = 4096
# The home of a slot, and the replicas that replace it, in this order, while it is busy or absent.
HOMES = 3

# Rows ranked at a time: keeps the working memory of a thousand replicas under ten megabytes.
_ROWS_AT_ONCE = 512


def affinity_key(text: str | bytes) -> int:
    """Return the key of a session name or of the start of a prompt: the same 64 bits in every process."""
    data = text.encode() if isinstance(text, str) else text
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True, eq=False)
class Homes:
    """The first `HOMES` replicas of every slot. A change returns a new object."""

    _names: Mapping[int, str]
    _seeds: Words  # [SLOTS, HOMES]: each replica's hash, best first; 0 where there are fewer replicas
    _weights: Words  # [SLOTS, HOMES]: the weight of each replica in that slot

    @classmethod
    def of(cls, replica_ids: Iterable[str]) -> Self:
        """Rank `replica_ids`."""
        import numpy as np

        none = np.zeros((SLOTS, HOMES), dtype=np.uint64)
        return cls({}, none, none).changed(joined=replica_ids)

    def changed(self, joined: Iterable[str] = (), left: Iterable[str] = ()) -> Self:
        """Return the ranking without `left` and with `joined`."""
        import numpy as np

        gone = {affinity_key(replica_id) for replica_id in left}
        staying = {seed: name for seed, name in self._names.items() if seed not in gone}
        new = {affinity_key(replica_id): replica_id for replica_id in joined}
        seeds, weights = self._seeds.copy(), self._weights.copy()
        orphaned = np.flatnonzero(np.isin(seeds, _words(gone)).any(axis=1)) if gone else np.empty(0, dtype=np.intp)
        seeds[orphaned] = weights[orphaned] = 0
        _enter(seeds, weights, orphaned, _words(staying))
        _enter(seeds, weights, np.arange(SLOTS), _words(new.keys() - staying.keys()))
        return type(self)(staying | new, seeds, weights)

    def of_key(self, key: int) -> list[str]:
        """Return the homes of `key`, the first choice first; fewer than `HOMES` in a smaller fleet."""
        return [self._names[seed] for seed in self._seeds[key % SLOTS].tolist() if seed]


def _words(values: Iterable[int]) -> Words:
    import numpy as np

    return np.fromiter(values, dtype=np.uint64)


def _enter(seeds: Words, weights: Words, slots: "npt.NDArray[np.intp]", newcomers: Words) -> None:
    """Enter `newcomers` in the rows `slots` of `seeds` and `weights`, in place, where their weights are larger."""
    import numpy as np

    if not newcomers.size:
        return
    for start in range(0, slots.size, _ROWS_AT_ONCE):
        rows = slots[start : start + _ROWS_AT_ONCE]
        drawn = _mixed(_mixed(rows.astype(np.uint64))[:, None] ^ newcomers)
        contenders = np.hstack([seeds[rows], np.broadcast_to(newcomers, drawn.shape)])
        draws = np.hstack([weights[rows], drawn])
        every = np.arange(rows.size)
        for rank in range(HOMES):
            best = draws.argmax(axis=1)
            weights[rows, rank] = draws[every, best]
            seeds[rows, rank] = np.where(draws[every, best] > 0, contenders[every, best], 0)
            draws[every, best] = 0


def _mixed(words: Words) -> Words:
    """Scatter `words` over all 64 bits: the finaliser of SplitMix64."""
    import numpy as np

    words = (words + np.uint64(0x9E3779B97F4A7C15)) & np.uint64(0xFFFFFFFFFFFFFFFF)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
