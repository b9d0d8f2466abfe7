"""Rows that a P-EAGLE drafter computes if only the device knows how many drafts were rejected.

Every verified row has a place, so the host need not wait for the device. Each request has first its accepted rows,
shifted by one and followed by the new token, then the masks of its own K, last as many empty rows as were rejected. The
host knows the length of each request's part. `laid_out` is the reference; `draft_rows_kernel.py` does it in one launch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NO_SLOT = -1
"""vLLM's value for a row without a slot in the cache."""


@dataclass(frozen=True, slots=True)
class Verified:
    """Rows that the target computed in a step, on the device.

    Attributes:
        tokens: int32, by row.
        positions: int64, by row, in the requests' texts.
        states: The target's hidden states, [rows, size].
        new_tokens: int32, by request: the target's next token after its accepted rows.
        rejected: int32, by request: number of its rejected rows, which come last.
        starts: int32, start of each request's rows, and the end of the last one's.
    """

    tokens: Tensor
    positions: Tensor
    states: Tensor
    new_tokens: Tensor
    rejected: Tensor
    starts: Tensor


@dataclass(frozen=True, slots=True)
class DraftCache:
    """The drafter's cache: int32 [requests, blocks] of block numbers, the block size, and the longest context."""

    blocks: Tensor
    block_size: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Mask:
    """Placeholder of an unknown token: its id, and the hidden state before it."""

    token: int
    state: Tensor


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The drafter's rows, by row unless stated otherwise.

    Attributes:
        ids: int32 tokens.
        positions: int64, in the requests' texts; 0 for an empty row.
        slots: int64, in the cache.
        states: [rows, size].
        to_sample: int32 [requests * K]: the rows to draft from. A request with a smaller K repeats its last row.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    states: Tensor
    to_sample: Tensor


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Location of each request's rows, as far as the host knows it.

    Attributes:
        depth: The largest K.
        masks: int32, by request.
        starts: int32, start of each request's rows, and the end of the last one's.
        requests: int32, request of each row.
    """

    depth: int
    masks: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    requests: npt.NDArray[np.int32]

    @property
    def rows(self) -> int:
        return len(self.requests)

    @property
    def longest(self) -> int:
        """Rows of the longest request."""
        return int(np.diff(self.starts).max())

    def packed(self) -> npt.NDArray[np.int32]:
        """Pack `starts`, `masks` and `requests` into one array, so that one copy moves them to the device.

        Attention also reads `starts`. It comes first, because kernels compile again for another alignment.
        """
        return np.concatenate((self.starts, self.masks, self.requests))


def plan_rows(verified_starts: npt.NDArray[np.int32], depths: npt.NDArray[np.int32], depth: int) -> RowPlan:
    """Plan the rows of requests whose verified rows begin at `verified_starts`, with the K of each in `depths`.

    At K = 0 a request's accepted rows and its new token still keep the drafter's cache in step.

    Args:
        depth: The largest K that a request may have.
    """
    masks = np.maximum(depths, 1) - 1
    starts = verified_starts.copy()
    starts[1:] += np.cumsum(masks, dtype=np.int32)
    requests = np.repeat(np.arange(len(depths), dtype=np.int32), np.diff(starts))
    return RowPlan(depth, masks, starts, requests)


def laid_out(plan: RowPlan, verified: Verified, mask: Mask, cache: DraftCache) -> LaidOut:
    """Lay out the rows of `plan` request by request, as the kernel's reference. Waits for the device."""
    device, size = verified.states.device, verified.states.shape[1]
    ids, positions, slots, states, to_sample = [], [], [], [], []
    for request, masks in enumerate(plan.masks.tolist()):
        first, end = verified.starts[request : request + 2].tolist()
        wrong = int(verified.rejected[request])
        kept = end - first - wrong
        new = verified.new_tokens[request : request + 1]
        fill = torch.tensor([mask.token] * masks + [0] * wrong, dtype=torch.int32, device=device)
        ids.append(torch.cat((verified.tokens[first + 1 : first + kept], new, fill)))
        used = verified.positions[first] + torch.arange(kept + masks, device=device)
        empty = used.new_zeros(wrong)
        positions.append(torch.cat((used, empty)))
        within = used[used < cache.context_tokens]
        found = cache.blocks[request].long()[within // cache.block_size] * cache.block_size + within % cache.block_size
        nowhere = used.new_full((kept + masks - len(found) + wrong,), NO_SLOT)
        slots.append(torch.cat((found, nowhere)))
        kept_states = verified.states[first : first + kept]
        states += [kept_states, mask.state.expand(masks, size), kept_states.new_zeros(wrong, size)]
        last = int(plan.starts[request]) + kept - 1
        to_sample += [last + min(draft, masks) for draft in range(plan.depth)]
    return LaidOut(
        torch.cat(ids),
        torch.cat(positions),
        torch.cat(slots),
        torch.cat(states),
        torch.tensor(to_sample, dtype=torch.int32, device=device),
    )
