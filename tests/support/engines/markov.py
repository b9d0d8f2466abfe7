"""A small reproducible Markov head, with a drafter's pass and texts."""

from typing import Any

import torch

from peagle.engine.drafting.ngrams import NgramIndex

DRAFTS, DEPTH, VOCABULARY, HIDDEN, RANK = 5, 4, 40, 12, 6


def weights(scale: float = 1.0) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(3)
    return {
        "markov_w1.weight": torch.randn(VOCABULARY, RANK, generator=draw),
        "markov_w2.weight": torch.randn(VOCABULARY, RANK, generator=draw) * scale,
        "gate_proj.weight": torch.randn(RANK, HIDDEN + RANK, generator=draw),
        "gate_proj.bias": torch.randn(RANK, generator=draw),
    }


def passed() -> tuple[Any, Any]:
    """Logits and hidden states of a drafter's pass."""
    draw = torch.Generator().manual_seed(4)
    logits = torch.randn(DRAFTS, DEPTH, VOCABULARY, generator=draw)
    return logits, torch.randn(DRAFTS, DEPTH, HIDDEN, generator=draw)


def texts() -> list[NgramIndex]:
    draw = torch.Generator().manual_seed(5)
    found = []
    for _ in range(DRAFTS):
        text = NgramIndex()
        text.read(torch.randint(VOCABULARY, (400,), generator=draw).tolist())
        found.append(text)
    return found
