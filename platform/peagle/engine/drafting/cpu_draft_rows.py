"""Rows that a P-EAGLE drafter computes on a CPU: the accepted tokens and the masks to draft from.

For so few rows Python lists are fastest; a single tensor operation costs more than a whole list.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# vLLM's value for a position without a slot in the cache.
_NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class Verified:
    """Rows that the target computed in a step.

    Attributes:
        starts: Start of each request's rows, and the end of the last one's.
        rejected: Number of rejected rows at the end of each request.
        tokens: Tokens of all rows.
        positions: Positions of all rows in their requests' texts.
    """

    starts: Sequence[int]
    rejected: Sequence[int]
    tokens: Sequence[int]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cache:
    """The drafter's cache: int tensor [requests, blocks] of block numbers, the block size, and the longest context."""

    blocks: Any
    block_size: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class DraftRows:
    """The drafter's rows, by row unless stated otherwise.

    Attributes:
        ids: Tokens.
        positions: Positions in the requests' texts.
        slots: Slots in the cache.
        to_sample: The rows to draft from.
        starts: Start of each request's rows, and the end of the last one's.
        kept: Range of verified rows that each request keeps: from, to.
        written: Start of each request's new text, and its tokens.
    """

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    to_sample: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    kept: list[tuple[int, int]] = field(default_factory=list)
    written: list[tuple[int, list[int]]] = field(default_factory=list)


def lay_out(verified: Verified, new_tokens: Sequence[int], masks: list[int], cache: Cache) -> DraftRows:
    """Lay out each request's accepted tokens, followed by `masks`.

    Args:
        new_tokens: The target's next token after each request's accepted rows.
    """
    rows = DraftRows()
    for request, wrong in enumerate(verified.rejected):
        first, end = verified.starts[request], verified.starts[request + 1] - wrong
        start, position = rows.starts[-1], verified.positions[first]
        # The drafter gets each token together with the hidden state of the previous position.
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
    """Return the cache slots of a request's rows; none beyond the context."""
    size = cache.block_size
    within = range(positions.start, min(positions.stop, cache.context_tokens))
    first = within.start // size
    numbers = cache.blocks[request][first : -(-within.stop // size)].tolist()
    slots = [numbers[at // size - first] * size + at % size for at in within]
    return slots + [_NO_SLOT] * (len(positions) - len(within))
