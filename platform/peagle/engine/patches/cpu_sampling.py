"""Fixes vLLM 0.29's sampling of drafts on a CPU, which ignores temperature, top-p and top-k.

A Triton kernel expands each request's settings to its drafted rows. Its CPU stand-in fills an int64 copy of its output
and drops it, so float settings keep whatever the memory held before. Drafts are then judged at an arbitrary
temperature, text differs from run to run, and sampling does not follow the target (vllm-project/vllm issue 55005, open
in 0.29).
"""

from typing import Any

import torch
from torch import Tensor


def install() -> None:
    """Replace the stand-in before the CPU model runner imports it. Idempotent."""
    from vllm.utils import cpu_triton_utils

    if cpu_triton_utils.expand_kernel.func is not _expand:
        cpu_triton_utils.expand_kernel = cpu_triton_utils._FuncWrapper(_expand)


def _expand(
    output: Tensor, values: Tensor, ends: Tensor, replace_from: float, replace_to: float, **launch_options: Any
) -> None:
    """Write `values[i]` to each row of request i, `output[ends[i-1]:ends[i]]`, with one value replaced by another."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    output.copy_(values.masked_fill(values == replace_from, replace_to).repeat_interleave(counts))
