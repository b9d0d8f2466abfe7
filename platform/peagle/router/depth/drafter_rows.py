"""How many rows a P-EAGLE drafter passes over in steps that only decode: what its CUDA graphs have to cover.

A request has a row for each token that the target checked, its own included, and a mask for each draft but the first,
which starts from the newest token. So b requests that verify V drafts and draft D have b * (V + D) rows.
"""


def decode_rows(batch_size: int, verified: int, drafted: int) -> int:
    """Rows of a step in which each request verifies `verified` drafts and drafts `drafted`, at least 1."""
    return batch_size * (verified + drafted)


def decode_rows_max(batch_size_max: int, depth_max: int) -> int:
    """The most rows that such a step can have; from here on a step without a graph holds a prompt."""
    return decode_rows(batch_size_max, depth_max, depth_max)
