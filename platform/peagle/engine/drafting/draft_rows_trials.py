"""Random batches for comparing the drafter's layout kernel with its reference."""

from collections.abc import Iterator

import numpy as np
import torch

from peagle.engine.drafting.draft_layout import DraftCache, Mask, RowPlan, Verified, plan_rows

_SEED, _BATCHES = 7, 4
_CONTEXT_TOKENS = 1024


def trials(
    depth_max: int, size: int, dtype: torch.dtype, device: torch.device, block_size: int
) -> Iterator[tuple[RowPlan, Verified, Mask, DraftCache]]:
    """Yield a few batches: of one or many requests, decoding and prefilling, at one or several K."""
    rng = np.random.default_rng(_SEED)
    for _ in range(_BATCHES):
        yield trial(rng, depth_max, size, dtype, device, block_size, requests_max=40, prompt_tokens_max=100)


def trial(
    rng: np.random.Generator,
    depth_max: int,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    block_size: int,
    requests_max: int,
    prompt_tokens_max: int,
) -> tuple[RowPlan, Verified, Mask, DraftCache]:
    """Return one batch. Its requests reach the end of their context, and slightly beyond."""
    requests, depth = int(rng.integers(1, requests_max + 1)), int(rng.integers(1, depth_max + 1))
    # The verified K may differ from the K drafted now.
    lengths = rng.integers(1, depth_max + 2, requests)
    prefills = rng.random(requests) < rng.choice([0.0, 0.2])
    lengths = np.where(prefills, rng.integers(1, prompt_tokens_max + 1, requests), lengths)
    rejected = np.where(prefills, 0, rng.integers(0, lengths))
    depths = rng.integers(0, depth + 1, requests) if rng.random() < 0.5 else np.full(requests, depth)
    context_tokens = block_size * -(-_CONTEXT_TOKENS // block_size)
    firsts = rng.integers(0, context_tokens - lengths + depth_max, requests).clip(0)
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    positions = np.concatenate([np.arange(first, first + each) for first, each in zip(firsts, lengths, strict=True)])
    rows, blocks = int(starts[-1]), context_tokens // block_size

    def of(values: object, kind: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.asarray(values)).to(kind).to(device)

    verified = Verified(
        tokens=of(rng.integers(0, 2**17, rows), torch.int32),
        positions=of(positions, torch.int64),
        states=of(rng.standard_normal((rows, size), np.float32), dtype),
        new_tokens=of(rng.integers(0, 2**17, requests), torch.int32),
        rejected=of(rejected, torch.int32),
        starts=of(starts, torch.int32),
    )
    mask = Mask(int(rng.integers(0, 2**17)), of(rng.standard_normal(size, np.float32), dtype))
    numbers = rng.permutation(requests * blocks).reshape(requests, blocks)
    cache = DraftCache(of(numbers, torch.int32), block_size, context_tokens)
    return plan_rows(starts, depths.astype(np.int32), depth), verified, mask, cache
