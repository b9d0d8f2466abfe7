"""Rows that a P-EAGLE drafter computes in decode-only steps; its CUDA graphs must cover these.

A request has a row for each token that the target verified, including its own, and a mask for each draft except the
first, which starts from the newest token. So b requests that verify V drafts and draft D have b * (V + D) rows.
"""


def decode_rows(batch_size: int, verified: int, drafted: int) -> int:
    """Return the rows of a step in which each request verifies `verified` drafts and drafts `drafted`, at least 1."""
    return batch_size * (verified + drafted)


def decode_rows_max(batch_size_max: int, depth_max: int) -> int:
    """Return the maximum rows of a decode-only step. A step without a graph and with more rows holds a prompt."""
    return decode_rows(batch_size_max, depth_max, depth_max)
