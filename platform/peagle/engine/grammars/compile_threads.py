"""Threads in which an engine core compiles grammars that have passed their trial."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# vLLM's default is half the number of cores, one on a small machine, where a slow grammar delays all others. The
# threads hold no lock while they compile.
THREADS = 8
NICENESS = 10


def widen(manager: Any) -> None:
    """Give vLLM's `StructuredOutputManager` more compile threads, at low priority so that the model has its cores."""
    if (threads := getattr(manager, "executor", None)) is not None:  # without a tokenizer it has none
        threads.shutdown(wait=False)
        manager.executor = ThreadPoolExecutor(THREADS, "grammar", initializer=_give_way)


def _give_way() -> None:
    if sys.platform == "linux":  # elsewhere this would lower the priority of the whole process
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
