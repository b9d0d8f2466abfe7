"""Lets a CPU worker reuse models compiled by an earlier worker, which halves its start time.

vLLM keeps each compiled model on disk. After loading it calls `finalize_loading` on the compiled function, which only
functions of its own compiler backend have. On a CPU the function is inductor's and already complete. vLLM 0.29 takes it
for a damaged file and compiles again at every start.

Inductor's files contain source specialized to the vector instructions of the processor on which they were made. On
another processor they would still build and run, but compute wrong results. Machines of several kinds may share a
folder of compiled models, so the processor's instructions must be part of a model's name. GPU code does not depend on
them, so nodes with different processors share what one of them compiled.
"""

import functools
from typing import Any

import torch


def install() -> None:
    """Add a no-op `finalize_loading` to complete functions, and give each kind of CPU its own models. Idempotent."""
    # Imported here: only a worker needs it.
    from vllm.compilation import caching

    load, factors = torch.compiler.load_compiled_function, caching.aot_compile_hash_factors
    if not hasattr(load, "__wrapped__"):

        @functools.wraps(load)
        def load_whole(*args: Any, **options: Any) -> Any:
            loaded = load(*args, **options)
            compiled = loaded._artifacts.compiled_fn  # type: ignore[attr-defined]
            if not hasattr(compiled, "finalize_loading"):
                compiled.finalize_loading = _nothing
            return loaded

        torch.compiler.load_compiled_function = load_whole
    if not hasattr(factors, "__wrapped__"):

        @functools.wraps(factors)
        def with_processor(vllm_config: Any) -> list[str]:
            on_cpu = vllm_config.device_config.device_type == "cpu"
            return [*factors(vllm_config), *([instructions()] if on_cpu else [])]

        caching.aot_compile_hash_factors = with_processor


def instructions() -> str:
    """Return the processor's architecture and the instruction sets that PyTorch uses or knows."""
    known = torch.cpu.get_capabilities()
    able = sorted(name for name, has in known.items() if has is True)
    return " ".join([str(known.get("architecture")), torch.backends.cpu.get_cpu_capability(), *able])


def _nothing(_vllm_config: object) -> None:
    pass
