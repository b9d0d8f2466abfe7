"""An engine core compiles several grammars at once, in threads of lower priority than its model."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from peagle.engine.grammars.compile_threads import NICENESS, widen


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a niceness of its own")
def test_a_grammar_that_takes_long_keeps_no_other_waiting_and_gives_way_to_the_model() -> None:
    manager = SimpleNamespace(executor=ThreadPoolExecutor(1))
    widen(manager)
    over = threading.Event()
    slow = manager.executor.submit(over.wait, 10)
    before = niceness()
    assert manager.executor.submit(niceness).result(5) >= min(19, max(NICENESS, before))
    over.set()
    assert slow.result(5)
    assert niceness() == before
    manager.executor.shutdown()


def test_a_manager_without_threads_is_left_alone() -> None:
    manager = SimpleNamespace()
    widen(manager)
    assert vars(manager) == {}
