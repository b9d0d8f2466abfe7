"""Randomness that depends only on a seed, a position in the text and a token.

Sampling adds Gumbel noise to the logits and takes the maximum (the Gumbel-max trick). With noise as a function of
`(seed, position, token)` the token at a position depends only on the logits. No generator holds a state that a rejected
draft, a preemption or a different step size could change.
"""

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014), whose state may start anywhere: each row of noise uses one of its streams.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_MIX_SECOND = 0x94D049BB133111EB - 2**64

# The largest float32 below 1: at 1 the noise would be infinite, and a token that is the only one allowed not sampled.
_BELOW_1 = 1.0 - 2.0**-24

# Bounds the temporary memory for noise: 32 MB per temporary.
ELEMENTS_AT_ONCE = 1 << 22


def sample_tokens(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Sample one token per row from `softmax(logits)`; -inf is never sampled.

    Args:
        logits: float [rows, vocabulary], temperature and filters applied.
        seeds: int64 [rows].
        positions: int64 [rows], each row's position in its request's text.

    Returns:
        int64 [rows].
    """
    keys = _mix(_mix(seeds + _STEP) + (positions + 1) * _STEP)
    rows_at_once = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    chunks = zip(torch.split(logits, rows_at_once), torch.split(keys, rows_at_once), strict=True)
    return torch.cat([(gumbel_noise(key, part.shape[-1]) + part).argmax(dim=-1) for part, key in chunks])


def gumbel_noise(keys: Tensor, width: int) -> Tensor:
    """Return standard Gumbel noise, float32 [rows, width], for int64 keys [rows].

    Uses single precision, which accelerators compute many times faster than double. Rare tokens win by the upper tail,
    so the uniform number that makes the noise large is drawn near 0, where floats are dense: with v uniform,
    -log(-log1p(-v)) has its tail at small v. Only the lower tail is cut, at -2.9, where no token wins.
    """
    counters = torch.arange(1, width + 1, device=keys.device) * _STEP
    uniform = (_logical_shift(~_mix(keys.unsqueeze(-1) + counters), 12).float() + 0.5) * 2.0**-52
    return uniform.clamp_(max=_BELOW_1).neg_().log1p_().neg_().log_().neg_()


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _logical_shift(bits, 30)) * _MIX_FIRST
    bits = (bits ^ _logical_shift(bits, 27)) * _MIX_SECOND
    return bits ^ _logical_shift(bits, 31)


def _logical_shift(bits: Tensor, by: int) -> Tensor:
    # torch lacks unsigned 64-bit arithmetic; the mask removes the copies of the sign bit.
    return (bits >> by) & ((1 << (64 - by)) - 1)
