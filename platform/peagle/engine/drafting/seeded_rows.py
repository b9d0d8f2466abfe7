"""Rows of a step whose tokens are sampled by seed, each with its position in its request's text."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from peagle.engine.drafting.keyed_noise import sample_tokens


class SeededRows(dict[int, torch.Generator]):
    """One step's generators by request, with the text positions of the rows to sample.

    vLLM passes `SamplingMetadata.generators` to every sampler, so the positions travel along.

    Args:
        generators: By index in the batch. Only their seeds are read.
        last: int64 [requests], the position of each request's last row.
        drafted: int64 [drafts], the position of each row that judges a draft; None without drafts.
    """

    def __init__(self, generators: Mapping[int, torch.Generator], last: Tensor, drafted: Tensor | None) -> None:
        super().__init__(generators)
        self._last = last
        self._drafted = drafted

    def sample_last(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Sample after the last rows, `logits` [requests, V]; return the seeded requests' indices and tokens."""
        return self._sample(logits, self._last, list(self), list(self))

    def sample_drafted(self, logits: Tensor, drafts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Sample the drafted rows, `logits` [drafts, V], `drafts` for each request; return seeded rows and tokens."""
        assert self._drafted is not None
        rows: list[int] = []
        owners: list[int] = []
        start = 0
        for request, count in enumerate(drafts):
            if request in self:
                rows += range(start, start + count)
                owners += [request] * count
            start += count
        return self._sample(logits, self._drafted, rows, owners)

    def _sample(self, logits: Tensor, positions: Tensor, rows: list[int], owners: list[int]) -> tuple[Tensor, Tensor]:
        index = to_device(rows, logits.device)
        if not rows:
            return index, index
        seeds = to_device([_signed(self[owner].initial_seed()) for owner in owners], logits.device)
        return index, sample_tokens(logits[index], seeds, positions[index])


def to_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Copy to int64 on `device` from pinned memory, without waiting for the device's current work."""
    on_host = torch.tensor(values, dtype=torch.int64, pin_memory=device.type == "cuda")
    return on_host.to(device, non_blocking=True)


def _signed(seed: int) -> int:
    """Convert a generator's unsigned seed to torch's int64."""
    return seed - 2**64 if seed >= 2**63 else seed
