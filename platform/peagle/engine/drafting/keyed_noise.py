"""Randomness that depends on nothing but a seed, a position in the text and a token.

Sampling adds Gumbel noise to the logits and takes the largest (the Gumbel-max trick). With noise that is a function of
`(seed, position, token)` the token at a position follows from the logits alone: no generator holds a state that a
rejected draft, a preemption or a step of another size could move.
"""

import torch
from torch import Tensor

# SplitMix64 (Steele, Lea, Flood 2014), whose state may start anywhere: each row of noise is one of its streams.
_STEP = 0x9E3779B97F4A7C15 - 2**64
_MIX_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_MIX_SECOND = 0x94D049BB133111EB - 2**64

# The largest float32 below 1: at 1 the noise would be infinite, and a token that is the only one allowed not be drawn.
_BELOW_1 = 1.0 - 2.0**-24

# Bounds what noise takes beside the logits: 32 MB a temporary.
ELEMENTS_AT_ONCE = 1 << 22


def sample_tokens(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Draw one token a row from `softmax(logits)`; -inf is never drawn.

    Args:
        logits: float [rows, vocabulary], temperature and filters applied.
        seeds: int64 [rows].
        positions: int64 [rows], where in its request's text each row is.

    Returns:
        int64 [rows].
    """
    keys = _mix(_mix(seeds + _STEP) + (positions + 1) * _STEP)
    rows_at_once = max(1, ELEMENTS_AT_ONCE // logits.shape[-1])
    chunks = zip(torch.split(logits, rows_at_once), torch.split(keys, rows_at_once), strict=True)
    return torch.cat([(gumbel_noise(key, part.shape[-1]) + part).argmax(dim=-1) for part, key in chunks])


def gumbel_noise(keys: Tensor, width: int) -> Tensor:
    """Standard Gumbel noise, float32 [rows, width], for int64 keys [rows].

    Single precision, which accelerators compute many times as fast as double. Rare tokens win by the upper tail, so the
    number that is large there is drawn near 0, where floats are dense: with v uniform, -log(-log1p(-v)) has its tail at
    small v. What is cut is the lower tail, at -2.9, by which no token wins.
    """
    counters = torch.arange(1, width + 1, device=keys.device) * _STEP
    uniform = (_logical_shift(~_mix(keys.unsqueeze(-1) + counters), 12).float() + 0.5) * 2.0**-52
    return uniform.clamp_(max=_BELOW_1).neg_().log1p_().neg_().log_().neg_()


def _mix(bits: Tensor) -> Tensor:
    bits = (bits ^ _logical_shift(bits, 30)) * _MIX_FIRST
    bits = (bits ^ _logical_shift(bits, 27)) * _MIX_SECOND
    return bits ^ _logical_shift(bits, 31)


def _logical_shift(bits: Tensor, by: int) -> Tensor:
    # torch has no unsigned 64-bit arithmetic: the mask drops the copies of the sign bit
    return (bits >> by) & ((1 << (64 - by)) - 1)
