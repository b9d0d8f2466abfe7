"""Runs a CPU engine's model in the engine core's own process.

vLLM 0.29 starts a separate process even for a single CPU worker, because OpenMP reads its variables at process start.
Every step then passes through shared memory and back, a third of its time for a small model.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch
from vllm.logger import init_logger
from vllm.utils.ompmultiprocessing import OMPProcessManager
from vllm.v1.executor.uniproc_executor import UniProcExecutor

_LOG = init_logger(__name__)
# Threads of gloo, which connects workers of several machines: some for every process group.
_GROUP_THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")


class InProcessExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM's executor has no types
    """A single worker, called directly, on the cores of VLLM_CPU_OMP_THREADS_BIND."""

    def _init_executor(self) -> None:
        cores = OMPProcessManager(self.vllm_config).cpu_lists
        if not cores:
            super()._init_executor()
            return
        all_cores = os.sched_getaffinity(0)
        # Before any parallel region: OpenMP creates its threads in the first one, and they inherit the affinity.
        os.sched_setaffinity(0, cores[0])
        torch.set_num_threads(len(cores[0]))
        _LOG.info("The model runs in the engine core's process, on cores %s", cores[0])
        super()._init_executor()
        free_group_threads(all_cores)


def free_group_threads(cores: Iterable[int]) -> None:
    """Let this process's process-group threads run on any of `cores`, not only on the model's.

    There are dozens, and each wakes a hundred times a second for nothing, which interrupts a step of a few milliseconds
    several times.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if (thread / "comm").read_text().strip() in _GROUP_THREADS:
                os.sched_setaffinity(int(thread.name), cores)
