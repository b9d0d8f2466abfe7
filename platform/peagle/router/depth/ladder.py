"""The depths to choose from, and the ranges of batch sizes that share one depth."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import sqrt


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Batch sizes `first` to `last`, which share one K and learned step times; `at` represents all of them."""

    first: int
    last: int
    at: int

    def __str__(self) -> str:
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


@lru_cache(maxsize=64)
def depth_ladder(depth_max: int, floor: int = 0, ceiling: int | None = None, static: int = 0) -> tuple[int, ...]:
    """Return 0, 1, 2, 3, 5, 7, … `depth_max` and `static`, clipped to the operator's bounds and including these."""
    top = depth_max if ceiling is None else max(0, min(ceiling, depth_max))
    bottom = max(0, min(floor, top))
    rungs = {0, 1, 2, *range(3, depth_max + 1, 2), depth_max, static}
    return tuple(sorted({bottom, top, *(rung for rung in rungs if bottom <= rung <= top)}))


@lru_cache(maxsize=64)
def batch_ranges(batch_max: int) -> tuple[BatchRange, ...]:
    """Return ranges from 1 to `batch_max`, two to each doubling: 1, 2, 3, 4, 6, 8, 12, 16, …"""
    marks = [1]
    while marks[-1] < batch_max:
        step = marks[-1]
        marks.append(step + 1 if step < 4 else step * 3 // 2 if step & (step - 1) == 0 else step * 4 // 3)
    marks[-1] = batch_max
    lasts = [int(sqrt(low * high)) for low, high in pairwise(marks)] + [batch_max]
    firsts = [1, *(last + 1 for last in lasts)]
    return tuple(BatchRange(first, last, at) for first, last, at in zip(firsts, lasts, marks, strict=False))


@lru_cache(maxsize=64)
def _lasts(batch_max: int) -> tuple[int, ...]:
    return tuple(batch_range.last for batch_range in batch_ranges(batch_max))


def range_index(batch_size: int, batch_max: int) -> int:
    """Return the index in `batch_ranges(batch_max)` of the range with `batch_size`, or of the nearest range."""
    lasts = _lasts(batch_max)
    return min(bisect_left(lasts, batch_size), len(lasts) - 1)
