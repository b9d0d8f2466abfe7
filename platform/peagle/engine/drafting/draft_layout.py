"""The rows that a P-EAGLE drafter passes over where how many drafts were wrong is known to the device alone.

Every verified row has a place, so that nobody waits for the device: of each request first those that were right,
shifted by one and with the new token behind them, then the masks of its own K, last as many empty rows as were wrong.
How long each request's part is, the host knows. `laid_out` says it plainly; `draft_rows_kernel.py` does it in one
launch.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NO_SLOT = -1
"""What vLLM writes for a row that has no place in the cache."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What the target passed over in a step, on the device.

    Attributes:
        tokens: int32, by row.
        positions: int64, by row, in the requests' texts.
        states: The target's hidden states, [rows, size].
        new_tokens: int32, by request: what the target says after its accepted rows.
        rejected: int32, by request: how many of its last rows were wrong.
        starts: int32, where each request's rows begin, and where the last one's end.
    """

    tokens: Tensor
    positions: Tensor
    states: Tensor
    new_tokens: Tensor
    rejected: Tensor
    starts: Tensor


@dataclass(frozen=True, slots=True)
class DraftCache:
    """The drafter's cache: int32 [requests, blocks] of block numbers, their size, and the longest context."""

    blocks: Tensor
    block_size: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Mask:
    """What stands for a token that is not known yet: its number, and the hidden state before it."""

    token: int
    state: Tensor


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The drafter's rows, by row unless said otherwise.

    Attributes:
        ids: int32 tokens.
        positions: int64, in the requests' texts; 0 for an empty row.
        slots: int64, in the cache.
        states: [rows, size].
        to_sample: int32 [requests * K]: the rows to draft from. A request of a smaller K repeats its last.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    states: Tensor
    to_sample: Tensor


@dataclass(frozen=True, slots=True)
class RowPlan:
    """Where each request's rows lie, as the host knows it.

    Attributes:
        depth: The largest K.
        masks: int32, by request.
        starts: int32, where each request's rows begin, and where the last one's end.
        requests: int32, of each row.
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
        """Rows of the request that has most."""
        return int(np.diff(self.starts).max())

    def packed(self) -> npt.NDArray[np.int32]:
        """All of it in one array, so that it goes to the device at once: `starts`, `masks`, `requests`.

        Attention reads `starts`, too: its kernels would be compiled once more for numbers that begin elsewhere.
        """
        return np.concatenate((self.starts, self.masks, self.requests))


def plan_rows(verified_starts: npt.NDArray[np.int32], depths: npt.NDArray[np.int32], depth: int) -> RowPlan:
    """Where the rows lie of requests whose verified rows begin at `verified_starts`, for the K of each in `depths`.

    At K = 0, too, a request's accepted rows and its new token keep the drafter's cache in step.

    Args:
        depth: The largest K that a request may have.
    """
    masks = np.maximum(depths, 1) - 1
    starts = verified_starts.copy()
    starts[1:] += np.cumsum(masks, dtype=np.int32)
    requests = np.repeat(np.arange(len(depths), dtype=np.int32), np.diff(starts))
    return RowPlan(depth, masks, starts, requests)


def laid_out(plan: RowPlan, verified: Verified, mask: Mask, cache: DraftCache) -> LaidOut:
    """The rows of `plan`, one request after the other: what the kernel is compared with. It waits for the device."""
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
