"""What an engine computes before it takes requests, so that no kernel compiles while a client waits. Pure.

On a GPU kernels compile when they are first called, once for each kind of arguments: greedy and random tokens are
drawn by other kernels, and a batch of one, of a multiple of 16 and of another size, or a K with another power of two
above it, are other kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class SamplingPath(StrEnum):
    """How the tokens of a batch are drawn."""

    GREEDY = "greedy"
    RANDOM = "random"
    TOP_P = "top_p"
    TOP_K = "top_k"
    SEEDED = "seeded"
    LOGPROBS = "logprobs"
    GRAMMAR = "grammar"
    MIXED = "mixed"
    """Requests of all the others in one batch, which vLLM draws by a path of its own."""


@dataclass(frozen=True, slots=True)
class WarmRun:
    """Requests that decode together, at each K of `depths` in turn."""

    batch_size: int
    path: SamplingPath
    depths: tuple[int, ...]
    prompt_tokens: int


# Short, so that the batch decodes soon. What other lengths compile, `_prompt_lengths` shows.
_PROMPT_TOKENS = 16
# From one length, or batch size, to the next.
_LENGTH_RATIO, _SIZE_RATIO = 4, 4
# Kernels are compiled anew for multiples of it.
_ALIGNED_SIZE = 16


def warm_runs(
    rungs: Sequence[int], batch_max: int, prompt_tokens_max: int, without: Sequence[SamplingPath] = ()
) -> tuple[WarmRun, ...]:
    """Every rung at a spread of batch sizes through every sampling path, behind prompts of a spread of lengths.

    K falls within a run, and 0 is last: requests that have decoded at K = 0 may draft no more.

    Args:
        rungs: K, each that the engine may be asked for.
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
        if path is not SamplingPath.MIXED or batch_size > 1  # one request is no mixture
    ]
    return tuple(runs)


def warm_batch_sizes(batch_max: int) -> tuple[int, ...]:
    """1, 2, 8, 16, 32, 128, …, `batch_max`."""
    sizes = {1, batch_max}
    if batch_max >= _ALIGNED_SIZE:
        sizes.add(_ALIGNED_SIZE)
    size = 2
    while size < batch_max:
        sizes.add(size)
        size *= _SIZE_RATIO
    return tuple(sorted(sizes))


def path_of(run: WarmRun, number: int, paths: Sequence[SamplingPath]) -> SamplingPath:
    """The path of request `number` of a run; `paths` are those that a mixed one is of."""
    return paths[number % len(paths)] if run.path is SamplingPath.MIXED else run.path


def _prompt_lengths(longest: int) -> tuple[int, ...]:
    """1, 4, 16, …, `longest`."""
    lengths = {1, longest}
    length = _LENGTH_RATIO
    while length < longest:
        lengths.add(length)
        length *= _LENGTH_RATIO
    return tuple(sorted(lengths))
