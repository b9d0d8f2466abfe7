"""The threads in which an engine core compiles grammars that have compiled on trial."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# vLLM has half as many as there are cores, one on a small machine: there a grammar that takes seconds keeps everybody's
# waiting. They hold no lock while they compile.
THREADS = 8
NICENESS = 10


def widen(manager: Any) -> None:
    """Give vLLM's `StructuredOutputManager` more threads to compile in, which leave cores to the model."""
    if (threads := getattr(manager, "executor", None)) is not None:  # without a tokenizer it has none
        threads.shutdown(wait=False)
        manager.executor = ThreadPoolExecutor(THREADS, "grammar", initializer=_give_way)


def _give_way() -> None:
    if sys.platform == "linux":  # elsewhere it would be the whole process that gives way
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
