"""Entry point into vLLM's worker processes, which hold the model."""

from typing import Any, Self

from peagle.engine.cpu_tiles import ask_for_tiles
from peagle.engine.patches.patch_table import install_patches
from peagle.upstream import Process


class WorkerExtension:
    """Value of vLLM's `worker_extension_cls`: a class that vLLM adds to its worker's bases.

    It adds nothing to the worker. Its construction is the only call that vLLM makes here, in each process that holds a
    model and in no other. At that time the worker's modules are imported but not yet used.
    """

    def __new__(cls, *_: Any, **__: Any) -> Self:
        install_patches(Process.WORKER)
        ask_for_tiles()
        return super().__new__(cls)
