"""The way into vLLM's worker processes, which hold the model."""

from typing import Any, Self

from peagle.engine.cpu_tiles import ask_for_tiles
from peagle.engine.patches.patch_table import install_patches
from peagle.upstream import Process


class WorkerExtension:
    """The value of vLLM's `worker_extension_cls`: a base class that vLLM gives its worker, which it then makes.

    It adds nothing to the worker. That the worker is made is the one call which vLLM makes here, in each process that
    holds a model and in no other; what the worker is made of is imported then, and not used yet.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        install_patches(Process.WORKER)
        ask_for_tiles()
        return super().__new__(cls)
