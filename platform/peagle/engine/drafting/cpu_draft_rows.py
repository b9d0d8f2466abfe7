"""The rows that a P-EAGLE drafter passes over: the tokens that were accepted, and the masks that it is asked for.

Lists of Python's are the quickest way to so few rows, where each tensor operation costs more than one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# What vLLM writes for a position that has no place in the cache.
_NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target passed over in a step.

    Attributes:
        starts: Where each request's rows begin, and where the last one's end.
        rejected: How many of each request's last rows were wrong.
        tokens: Of all rows.
        positions: Of all rows, in their requests' texts.
    """

    starts: Sequence[int]
    rejected: Sequence[int]
    tokens: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cache:
    """The drafter's cache: int tensor [requests, blocks] of block numbers, their size, and the longest context."""

    blocks: Any
    block_size: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The drafter's rows, by row unless said otherwise.

    Attributes:
        ids: Tokens.
        positions: In the requests' texts.
        slots: In the cache.
        to_sample: The rows to draft from.
        starts: Where each request's rows begin, and where the last one's end.
        kept: Of each request, which verified rows it keeps: from, to.
        written: Of each request, where its new text begins and what it is.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    to_sample: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    kept: list[tuple[int, int]] = field(default_factory=list)
    written: list[tuple[int, list[int]]] = field(default_factory=list)


def lay_out(verified: Verified, new_tokens: Sequence[int], masks: list[int], cache: Cache) -> DraftRows:
    """Lay out each request's accepted tokens and `masks` behind them.

    Args:
        new_tokens: What the target says after each request's accepted rows.
    """
    rows = DraftRows()
    for request, wrong in enumerate(verified.rejected):
        first, end = verified.starts[request], verified.starts[request + 1] - wrong
        start, position = rows.starts[-1], verified.positions[first]
        # The drafter meets each token with the hidden state of the one before.
        rows.ids.extend(verified.tokens[first + 1 : end])
        rows.ids.append(new_tokens[request])
        rows.written.append((position + 1, rows.ids[start:]))
        rows.to_sample.extend(range(len(rows.ids) - 1, len(rows.ids) + len(masks)))
        rows.ids.extend(masks)
        span = range(position, position + len(rows.ids) - start)
        rows.positions.extend(span)
        rows.slots.extend(slots_of(span, cache, request))
        rows.kept.append((first, end))
        rows.starts.append(len(rows.ids))
    return rows


def slots_of(positions: range, cache: Cache, request: int) -> list[int]:
    """Where in the cache a request's rows go; nowhere beyond the context."""
    size = cache.block_size
    within = range(positions.start, min(positions.stop, cache.context_tokens))
    first = within.start // size
    numbers = cache.blocks[request][first : -(-within.stop // size)].tolist()
    slots = [numbers[at // size - first] * size + at % size for at in within]
    return slots + [_NO_SLOT] * (len(positions) - len(within))
