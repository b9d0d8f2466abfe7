"""Lets a CPU worker start from what an earlier one compiled, which saves half of its start.

vLLM keeps each compiled model on disk. Loading one, it asks the compiled function to `finalize_loading`; only those of
its own compiler backend can. On a CPU the function is inductor's, whole as it is: vLLM 0.29 takes that for a damaged
file and compiles again at every start.

What inductor keeps is source that is cut to the vectors of the processor that it was made on. On another one it would
be built and run all the same, and compute nonsense. A folder of compiled models may be shared by machines of several
kinds, so the processor's instructions belong into the name by which a model is found. What a GPU computes does not
depend on them: there, nodes with other processors share what one of them compiled.
"""

import functools
from typing import Any

import torch


def install() -> None:
    """Give functions that need no finishing a step that does nothing, and each kind of processor, where it computes,
    models of its own; again, it changes nothing."""
    # Imported here: only a worker has it anyway.
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
    """The processor's architecture and what of its instructions PyTorch uses or knows of."""
    known = torch.cpu.get_capabilities()
    able = sorted(name for name, has in known.items() if has is True)
    return " ".join([str(known.get("architecture")), torch.backends.cpu.get_cpu_capability(), *able])


def _nothing(_vllm_config: object) -> None:
    pass
