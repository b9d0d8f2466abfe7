"""K of a replica, why, and what speculation gains there, in one line, from its row of `GET /fleet`."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Replica = Mapping[str, Any]


def depth_line(replica: Replica) -> str | None:
    """Tell K by batch size, why, and the gain; None of a replica without live depth."""
    depths = replica.get("depths")
    if not depths:
        return None
    why = replica.get("depth_reason")
    chosen = by_batch_size(depths) + (f" ({why})" if why else "")
    return " · ".join([chosen, *filter(None, [gain(replica)])])


def by_batch_size(depths: Sequence[int]) -> str:
    """Name K of each run of batch sizes: `depths[b]` is that of b requests at once, and the last one of all above.

    No step has a batch of 0.
    """
    batches = list(range(1, len(depths))) or [0]
    runs = [(depth, list(run)) for depth, run in groupby(batches, key=depths.__getitem__)]
    if len(runs) == 1:
        return f"K = {runs[0][0]}"
    return "K by requests at once: " + ", ".join(f"{depth} for {_span(run[0], run[-1])}" for depth, run in runs)


def gain(replica: Replica) -> str | None:
    """Tell what speculation gains at the present load; None where nobody estimates it, as depth does not adapt."""
    ratio, low, high = (replica.get(f"speedup_{part}") for part in ("ratio", "low", "high"))
    if ratio is None or low is None or high is None:
        # Before it has served, or since the Router was asked in vain.
        return "gain not known yet" if replica.get("depth_mode", "static") != "static" else None
    if replica.get("depth_planned") == 0:
        return "speculation is off at this load"
    return f"speculation gives {ratio:.2f} times the tokens/s (95 %: {low:.2f} to {high:.2f})"


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"
