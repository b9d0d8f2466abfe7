"""Published and measured step times and survival curves."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from peagle.router.depth import depth_ladder
from peagle.router.depth.priors import DEVICES, TARGETS, Device, TargetSize

DEPTH_MAX = 7
DEPTHS = depth_ladder(DEPTH_MAX)

Cost = Callable[[float, float, float], float]
"""Seconds of a step, by batch size, tokens computed by the target, and sequences drafted for."""


def _geometric(first: float, ratio: float) -> tuple[float, ...]:
    return (first, *(ratio,) * (DEPTH_MAX - 1))


CURVES: Mapping[str, tuple[float, ...]] = {
    # GPT-OSS 20B with P-EAGLE: first position and ratio, fitted to the acceptance lengths of AWS and vLLM, 2026-03.
    "HumanEval": _geometric(0.89, 0.73),
    "MT-Bench": _geometric(0.83, 0.725),
    "SPEED-Bench": _geometric(0.935, 0.62),
    "low": _geometric(0.35, 0.30),
}
"""Probability that a draft is right where all before it were, by position."""

_H200_SIZES = (1, 8, 32, 64, 128)
_H200_MS: Mapping[int, Sequence[float]] = {
    0: (4.8, 4.9, 5.3, 5.9, 7.3),
    1: (5.9, 6.6, 8.4, 11.3, 15.0),
    2: (5.9, 7.4, 8.8, 13.9, 17.9),
    3: (6.0, 7.7, 9.1, 13.0, 20.8),
    5: (6.1, 7.7, 9.2, 16.3, 30.4),
    7: (6.1, 6.4, 11.6, 18.5, 32.9),
}


def h200_step_s(batch_size: float, tokens: float, drafting: float) -> float:
    """Measured on one H200, 2026-11-26: a target of Llama-3.1-8B's shape, a head of four layers, vLLM 0.29, FA3.

    Each depth has full CUDA graphs; milliseconds of one decode-only step, one pass. Between points it follows a line.
    """
    if not drafting:
        return 1e-3 * _line(_H200_SIZES, _H200_MS[0], batch_size)
    depths = [k for k in _H200_MS if k]
    by_depth = [_line(_H200_SIZES, _H200_MS[k], batch_size) for k in depths]
    return 1e-3 * _line(depths, by_depth, max(1.0, tokens / batch_size - 1.0))


def _line(marks: Sequence[int], values: Sequence[float], at: float) -> float:
    """Interpolate a scalar: `np.interp` would cost more than the rest of a step."""
    index = min(max(bisect_left(marks, at), 1), len(marks) - 1)
    low, high = marks[index - 1], marks[index]
    share = min(max((at - low) / (high - low), 0.0), 1.0)
    return values[index - 1] * (1.0 - share) + values[index] * share


@dataclass(frozen=True)
class Roofline:
    """Step times by memory and compute; the shape is that of the published step-time model, with hard turns.

    Attributes:
        target, device: Sizes.
        step_s, draft_s: Fixed time of a step, and of the drafter's pass.
        graph_rows: Capture sizes are multiples of this up to 512 rows, beyond which a step takes half as much again;
            0 for steps without graphs.
    """

    target: TargetSize
    device: Device
    step_s: float = 2.0e-3
    draft_s: float = 1.8e-3
    sequence_s: float = 15e-6
    graph_rows: int = 0

    def __call__(self, batch_size: float, tokens: float, drafting: float) -> float:
        eager = 1.0
        if self.graph_rows:
            eager = 1.5 if tokens > 512 else 1.0
            tokens = -(-tokens // self.graph_rows) * self.graph_rows if tokens > 8 else tokens
        awake = 1.0 - (1.0 - self.target.experts_active / self.target.experts) ** tokens if self.target.experts else 0.0
        read = (
            (self.target.dense_gb + self.target.experts_gb * awake) * 1e9 / (0.7 * self.device.memory_tb_per_s * 1e12)
        )
        computed = 2.0 * self.target.active_parameters * tokens / (0.45 * self.device.compute_pflop_per_s * 1e15)
        fixed = self.step_s + self.draft_s * (drafting > 0) + self.sequence_s * batch_size
        return eager * (fixed + max(read, computed))


COSTS: Mapping[str, Cost] = {
    "8B-H200-measured": h200_step_s,
    **{
        f"{name}-{device}": Roofline(TARGETS[target], DEVICES[device])
        for name, target in (("20B", "gpt-oss-20b"), ("120B", "gpt-oss-120b"), ("30B-A3B", "qwen3-coder-30b-a3b"))
        for device in ("H200", "B200")
    },
    "20B-H200-graphs": Roofline(TARGETS["gpt-oss-20b"], DEVICES["H200"], graph_rows=64),
}
