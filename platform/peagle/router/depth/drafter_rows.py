"""Rows that a P-EAGLE drafter computes in decode-only steps; its CUDA graphs must cover these.

A request has a row for each token that the target verified, including its own, and a mask for each draft except the
first, which starts from the newest token. So b requests that verify V drafts and draft D have b * (V + D) rows.
"""

from collections.abc import Iterable, Sequence
from itertools import product


def decode_rows(batch_size: int, verified: int, drafted: int) -> int:
    """Return the rows of a step in which each request verifies `verified` drafts and drafts `drafted`, at least 1."""
    return batch_size * (verified + drafted)


def decode_row_counts(batch_sizes: Iterable[int], ladder: Sequence[int]) -> tuple[int, ...]:
    """Return every possible number of rows if all requests of a batch are alike, in ascending order.

    At a steady K a step has 2 b K rows, or b (K + Kmax) if the drafter always drafts Kmax. Just after a change of K,
    verified drafts follow the old K and new drafts the new K. Requests that have just arrived verify nothing. At K = 0
    the drafter does not run. If requests differ, numbers between these occur.

    Args:
        ladder: The values of K, including 0 and Kmax.
    """
    pairs = [(verified, drafted) for verified, drafted in product({0, *ladder}, ladder) if drafted]
    return tuple(sorted({decode_rows(size, *pair) for size in batch_sizes for pair in pairs}))


def decode_rows_max(batch_size_max: int, depth_max: int) -> int:
    """Return the maximum rows of a decode-only step. A step without a graph and with more rows holds a prompt."""
    return decode_rows(batch_size_max, depth_max, depth_max)
