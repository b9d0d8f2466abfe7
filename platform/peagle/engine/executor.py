"""Runs a CPU engine's model in the engine core's own process.

vLLM 0.29 gives a CPU worker a process of its own even where there is one, because OpenMP reads its variables as the
process starts. Every step then passes through shared memory and back: a third of its time where the model is small.
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
# Of gloo, through which workers of several machines would talk: some for every process group.
_GROUP_THREADS = ("gloo_tcp_loop", "pt_gloo_runloop")


class InProcessExecutor(UniProcExecutor):  # type: ignore[misc]  # vLLM's executor has no types
    """One worker, called directly. It keeps to the cores that VLLM_CPU_OMP_THREADS_BIND gives it."""

    def _init_executor(self) -> None:
        cores = OMPProcessManager(self.vllm_config).cpu_lists
        if not cores:
            super()._init_executor()
            return
        all_cores = os.sched_getaffinity(0)
        # Before any parallel region: OpenMP's threads are made at the first, and inherit where they may run.
        os.sched_setaffinity(0, cores[0])
        torch.set_num_threads(len(cores[0]))
        _LOG.info("The model runs in the engine core's process, on cores %s", cores[0])
        super()._init_executor()
        free_group_threads(all_cores)


def free_group_threads(cores: Iterable[int]) -> None:
    """Let this process's threads of process groups run on any of `cores`, and no longer on the model's alone.

    Each wakes a hundred times a second to find nothing, and there are dozens: that breaks into a step of a few
    milliseconds several times.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if (thread / "comm").read_text().strip() in _GROUP_THREADS:
                os.sched_setaffinity(int(thread.name), cores)
