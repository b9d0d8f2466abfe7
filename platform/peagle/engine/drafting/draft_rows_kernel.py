"""Lays out a P-EAGLE drafter's rows on a GPU in one launch; `draft_layout.py` defines the layout.

Imports Triton, which comes with PyTorch for GPUs.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from peagle.engine.drafting.draft_layout import DraftCache, LaidOut, Mask, RowPlan, Verified

# Rows and hidden-state elements per program: a tile that four warps move with wide loads.
_ROWS, _WIDTH = 16, 256
# Arguments that may change between steps, or between a trial and a step. Specializing on these numbers or on tensor
# alignment would compile kernels while a client waits. Hidden states have one size and are aligned for wide loads.
_NUMBERS = (
    "row_count",
    "sample_count",
    "depth",
    "request_count",
    "mask_token",
    "blocks_stride",
    "block_size",
    "context_tokens",
)
_POINTERS = (
    "tokens_ptr",
    "positions_ptr",
    "new_tokens_ptr",
    "rejected_ptr",
    "verified_starts_ptr",
    "blocks_ptr",
    "starts_ptr",
    "ids_ptr",
    "out_positions_ptr",
    "slots_ptr",
    "to_sample_ptr",
)


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=_POINTERS)  # type: ignore[untyped-decorator]
def draft_rows(  # type: ignore[no-untyped-def]  # its arguments are Triton's
    tokens_ptr,  # [verified rows]
    positions_ptr,  # [verified rows]
    states_ptr,  # [verified rows, size]
    new_tokens_ptr,  # [requests]
    rejected_ptr,  # [requests]
    verified_starts_ptr,  # [requests + 1]
    blocks_ptr,  # [requests, blocks]
    mask_state_ptr,  # [size]
    starts_ptr,  # `RowPlan.packed`, which begins with `starts`
    ids_ptr,  # [rows], an output like all below
    out_positions_ptr,  # [rows]
    slots_ptr,  # [rows]
    out_states_ptr,  # [rows, size]
    to_sample_ptr,  # [requests * depth]
    row_count,
    sample_count,
    depth,
    request_count,
    mask_token,
    size,
    states_stride,
    out_stride,
    blocks_stride,
    block_size,
    context_tokens,
    ROWS: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
):
    masks_ptr = starts_ptr + request_count + 1
    requests_ptr = masks_ptr + request_count
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < row_count
    request = tl.load(requests_ptr + rows, mask=is_row, other=0)
    first = tl.load(verified_starts_ptr + request)
    kept = tl.load(verified_starts_ptr + request + 1) - first - tl.load(rejected_ptr + request)
    masks = tl.load(masks_ptr + request)
    place = rows - tl.load(starts_ptr + request)
    is_kept = is_row & (place < kept)
    is_mask = is_row & (place >= kept) & (place < kept + masks)
    source = (first + place).to(tl.int64)

    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_column = columns < size
    kept_tile, row_tile = is_kept[:, None] & is_column[None, :], is_row[:, None] & is_column[None, :]
    states = tl.load(states_ptr + source[:, None] * states_stride + columns[None, :], mask=kept_tile, other=0.0)
    mask_state = tl.load(mask_state_ptr + columns, mask=is_column, other=0.0)
    tl.store(
        out_states_ptr + rows.to(tl.int64)[:, None] * out_stride + columns[None, :],
        tl.where(is_mask[:, None], mask_state[None, :], states),
        mask=row_tile,
    )
    if tl.program_id(1) == 0:
        # The drafter gets each token together with the hidden state of the previous position.
        tokens = tl.load(tokens_ptr + source + 1, mask=is_kept & (place < kept - 1), other=0)
        tokens = tl.where(is_kept & (place == kept - 1), tl.load(new_tokens_ptr + request), tokens)
        tl.store(ids_ptr + rows, tl.where(is_mask, mask_token, tokens), mask=is_row)
        is_used = is_kept | is_mask
        position = tl.where(is_used, tl.load(positions_ptr + first) + place, 0)
        tl.store(out_positions_ptr + rows, position, mask=is_row)
        has_slot = is_used & (position < context_tokens)
        at = request.to(tl.int64) * blocks_stride + position // block_size
        block = tl.load(blocks_ptr + at, mask=has_slot, other=0).to(tl.int64)
        tl.store(slots_ptr + rows, tl.where(has_slot, block * block_size + position % block_size, -1), mask=is_row)
        # The same program ids again, now as indices of drafts.
        of = tl.where(rows < sample_count, rows // depth, 0)
        kept = tl.load(verified_starts_ptr + of + 1) - tl.load(verified_starts_ptr + of) - tl.load(rejected_ptr + of)
        last = tl.load(starts_ptr + of) + kept - 1
        draft = tl.minimum(rows % depth, tl.load(masks_ptr + of))
        tl.store(to_sample_ptr + rows, last + draft, mask=rows < sample_count)


def lay_out(plan: RowPlan, packed: Tensor, verified: Verified, mask: Mask, cache: DraftCache, out: LaidOut) -> None:
    """Write the rows of `plan` into the tensors of `out`, which may be longer. Does not wait for the device.

    Args:
        packed: `plan.packed()`, on the device.
    """
    requests, size = len(plan.masks), verified.states.shape[1]
    samples = requests * plan.depth
    grid = (triton.cdiv(max(plan.rows, samples), _ROWS), triton.cdiv(size, _WIDTH))
    draft_rows[grid](
        verified.tokens,
        verified.positions,
        verified.states,
        verified.new_tokens,
        verified.rejected,
        verified.starts,
        cache.blocks,
        mask.state,
        packed,
        out.ids,
        out.positions,
        out.slots,
        out.states,
        out.to_sample,
        plan.rows,
        samples,
        plan.depth,
        requests,
        mask.token,
        size,
        verified.states.stride(0),
        out.states.stride(0),
        cache.blocks.stride(0),
        cache.block_size,
        cache.context_tokens,
        ROWS=_ROWS,
        WIDTH=_WIDTH,
    )


def empty(plan: RowPlan, verified: Verified) -> LaidOut:
    """Allocate tensors for the rows of `plan`."""
    like, rows = verified.states, plan.rows
    return LaidOut(
        ids=torch.empty(rows, dtype=torch.int32, device=like.device),
        positions=torch.empty(rows, dtype=torch.int64, device=like.device),
        slots=torch.empty(rows, dtype=torch.int64, device=like.device),
        states=torch.empty(rows, like.shape[1], dtype=like.dtype, device=like.device),
        to_sample=torch.empty(len(plan.masks) * plan.depth, dtype=torch.int32, device=like.device),
    )
