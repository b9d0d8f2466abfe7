"""A replica's K, its reason and the speedup in one line, from its row of `GET /fleet`."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Replica = Mapping[str, Any]


def depth_line(replica: Replica) -> str | None:
    """Return K by batch size, its reason and the speedup; None for a replica without live depth."""
    depths = replica.get("depths")
    if not depths:
        return None
    why = replica.get("depth_reason")
    chosen = by_batch_size(depths) + (f" ({why})" if why else "")
    return " · ".join([chosen, *filter(None, [gain(replica)])])


def by_batch_size(depths: Sequence[int]) -> str:
    """Return K of each range of batch sizes: `depths[b]` is K for b concurrent requests, the last for all above.

    Index 0 is not used: no step has an empty batch.
    """
    batches = list(range(1, len(depths))) or [0]
    runs = [(depth, list(run)) for depth, run in groupby(batches, key=depths.__getitem__)]
    if len(runs) == 1:
        return f"K = {runs[0][0]}"
    return "K by concurrent requests: " + ", ".join(f"{depth} for {_span(run[0], run[-1])}" for depth, run in runs)


def gain(replica: Replica) -> str | None:
    """Return the speedup at the current load; None if depth is static, because nothing estimates it then."""
    ratio, low, high = (replica.get(f"speedup_{part}") for part in ("ratio", "low", "high"))
    if ratio is None or low is None or high is None:
        # Before the replica has served requests, or while the Router does not answer.
        return "speedup not known yet" if replica.get("depth_mode", "static") != "static" else None
    if replica.get("depth_planned") == 0:
        return "speculation is off at this load"
    return f"speculation speedup {ratio:.2f} (95 % interval {low:.2f} to {high:.2f})"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"
