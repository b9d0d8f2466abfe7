"""Lets a step run without its drafter: the scheduler says so in `num_spec_tokens_to_schedule`, the worker obeys.

vLLM has a way to leave the drafter out, for contexts that it cannot draft in. Here a step that asks for no drafts takes
the same way. Its requests then have a gap in the drafter's cache, so the scheduler that asks for it has to see that
they draft no more.
"""

import functools
from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


def install() -> None:
    """Teach this process's model runner, which on a CPU is a subclass; again, it changes nothing."""
    sample = GPUModelRunner.sample_tokens
    if hasattr(sample, "__wrapped__"):
        return
    fits = GPUModelRunner._input_fits_in_drafter

    @functools.wraps(sample)
    def sample_tokens(runner: Any, grammar_output: Any) -> Any:
        state = runner.execute_model_state
        runner.peagle_drafts = state is None or state[0].num_spec_tokens_to_schedule > 0
        return sample(runner, grammar_output)

    @functools.wraps(fits)
    def fits_in_drafter(runner: Any, metadata: Any) -> bool:
        return runner.peagle_drafts and bool(fits(runner, metadata))

    GPUModelRunner.sample_tokens = sample_tokens
    GPUModelRunner._input_fits_in_drafter = fits_in_drafter
