"""An event loop whose clock jumps to the next timer: waits take no time, and what takes how long is exact.

A test of what happens within which time then says the same on a machine that is busy.
"""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class _Jumps(selectors.SelectSelector):
    """Waits for nothing: the time that it should have waited is over at once."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None:
            raise AssertionError("everything waits, and no timer runs: nothing would ever happen")
        self.now_s += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for each other and for timers, not for threads, processes or sockets."""

    def __init__(self) -> None:
        self._jumps = _Jumps()
        super().__init__(self._jumps)

    def time(self) -> float:
        return self._jumps.now_s


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test in a loop of virtual time; production code has to ask the loop for the time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def now_s() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
