"""Lets a CPU worker start from what an earlier one compiled, which saves half of its start.

vLLM keeps each compiled model on disk. Loading one, it asks the compiled function to `finalize_loading`; only those of
its own compiler backend can. On a CPU the function is inductor's, whole as it is: vLLM 0.29 takes that for a damaged
file and compiles again at every start.
"""

import functools
from typing import Any

import torch


def install() -> None:
    """Give functions that need no finishing a step that does nothing; again, it changes nothing."""
    load = torch.compiler.load_compiled_function
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    def load_whole(*args: Any, **options: Any) -> Any:
        loaded = load(*args, **options)
        compiled = loaded._artifacts.compiled_fn  # type: ignore[attr-defined]
        if not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = _nothing
        return loaded

    torch.compiler.load_compiled_function = load_whole


def _nothing(_vllm_config: object) -> None:
    pass
