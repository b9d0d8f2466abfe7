"""How many rows a P-EAGLE drafter passes over in steps that only decode: what its CUDA graphs have to cover.

A request has a row for each token that the target checked, its own included, and a mask for each draft but the first,
which starts from the newest token. So b requests that verify V drafts and draft D have b * (V + D) rows.
"""

from collections.abc import Iterable, Sequence
from itertools import product


def decode_rows(batch_size: int, verified: int, drafted: int) -> int:
    """Rows of a step in which each request verifies `verified` drafts and drafts `drafted`, at least 1."""
    return batch_size * (verified + drafted)


def decode_row_counts(batch_sizes: Iterable[int], ladder: Sequence[int]) -> tuple[int, ...]:
    """Every number of rows that occurs where all requests of a batch are alike, in ascending order.

    At a steady K a step has 2 b K rows, and b (K + Kmax) where it drafts all that it can. Where K has just changed,
    what is verified is of the old K and what is drafted of the new one; requests that have just come in verify nothing.
    Without drafts, at K = 0, the drafter does not run. Where requests differ there are numbers between these.

    Args:
        ladder: The values of K, 0 and Kmax among them.
    """
    pairs = [(verified, drafted) for verified, drafted in product({0, *ladder}, ladder) if drafted]
    return tuple(sorted({decode_rows(size, *pair) for size in batch_sizes for pair in pairs}))


def decode_rows_max(batch_size_max: int, depth_max: int) -> int:
    """The most rows that such a step can have; from here on a step without a graph holds a prompt."""
    return decode_rows(batch_size_max, depth_max, depth_max)
