"""Computations of an engine before it takes requests, so that no kernel compiles while a client waits. Pure.

On a GPU a kernel compiles at its first call, once for each kind of arguments. Greedy and random sampling use different
kernels. A batch of one, a multiple of 16, any other size, and a K with another next power of two, are different kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class SamplingPath(StrEnum):
    """How the tokens of a batch are sampled."""

    GREEDY = "greedy"
    RANDOM = "random"
    TOP_P = "top_p"
    TOP_K = "top_k"
    SEEDED = "seeded"
    LOGPROBS = "logprobs"
    GRAMMAR = "grammar"
    MIXED = "mixed"
    """Requests of all other paths in one batch, for which vLLM has a separate path."""


@dataclass(frozen=True, slots=True)
class WarmRun:
    """Requests that decode together, at each K of `depths` in turn."""

    batch_size: int
    path: SamplingPath
    depths: tuple[int, ...]
    prompt_tokens: int


# Short, so that the batch decodes soon. `_prompt_lengths` covers kernels for other lengths.
_PROMPT_TOKENS = 16
# Ratio between consecutive lengths, and between consecutive batch sizes.
_LENGTH_RATIO, _SIZE_RATIO = 4, 4
# Kernels compile separately for multiples of this size.
_ALIGNED_SIZE = 16


def warm_runs(
    rungs: Sequence[int], batch_max: int, prompt_tokens_max: int, without: Sequence[SamplingPath] = ()
) -> tuple[WarmRun, ...]:
    """Plan every rung, batch size and sampling path, and prompts of several lengths.

    K falls within a run and 0 comes last, since requests that have decoded at K = 0 may not draft again.

    Args:
        rungs: Every K that the engine may be asked for.
        batch_max: The largest batch (`max_num_seqs`).
        prompt_tokens_max: The longest prompt that one step computes.
        without: Paths that the engine does not have.
    """
    falling = tuple(sorted(set(rungs), reverse=True))
    prompt_tokens = min(_PROMPT_TOKENS, prompt_tokens_max)
    paths = [path for path in SamplingPath if path not in without]
    runs = [WarmRun(1, SamplingPath.GREEDY, falling[:1], length) for length in _prompt_lengths(prompt_tokens_max)]
    runs += [
        WarmRun(batch_size, path, falling, prompt_tokens)
        for batch_size in warm_batch_sizes(batch_max)
        for path in paths
        if path is not SamplingPath.MIXED or batch_size > 1  # one request cannot be a mixture
    ]
    return tuple(runs)


def warm_batch_sizes(batch_max: int) -> tuple[int, ...]:
    """Return 1, 2, 8, 16, 32, 128, …, `batch_max`."""
    sizes = {1, batch_max}
    if batch_max >= _ALIGNED_SIZE:
        sizes.add(_ALIGNED_SIZE)
    size = 2
    while size < batch_max:
        sizes.add(size)
        size *= _SIZE_RATIO
    return tuple(sorted(sizes))


def path_of(run: WarmRun, number: int, paths: Sequence[SamplingPath]) -> SamplingPath:
    """Return the path of request `number` of a run; a mixed run cycles through `paths`."""
    return paths[number % len(paths)] if run.path is SamplingPath.MIXED else run.path


def _prompt_lengths(longest: int) -> tuple[int, ...]:
    """Return 1, 4, 16, …, `longest`."""
    lengths = {1, longest}
    length = _LENGTH_RATIO
    while length < longest:
        lengths.add(length)
        length *= _LENGTH_RATIO
    return tuple(sorted(lengths))
