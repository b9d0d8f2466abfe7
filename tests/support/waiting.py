"""Waits for changes made by another process or task."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

# Long, because a slow machine is no failure: it passes only where something never comes.
PATIENCE_S = 120.0
POLL_S = 0.25
Found = TypeVar("Found")


def eventually(look: Callable[[], Found], within_s: float = PATIENCE_S) -> Found:
    """Return the result of `look` once it finds something; fail after this many seconds."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not there after {within_s:g} s"
        time.sleep(POLL_S)
    return found


async def until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait until something holds of which nothing tells."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def soon(act: Callable[[], Awaitable[Found]], within_s: float, tries: int = 2) -> Found:
    """Return what `act` returns within this time in one of several tries: the machine may stall during one."""
    for _ in range(tries):
        began_s = time.monotonic()
        found = await act()
        took_s = time.monotonic() - began_s
        if took_s < within_s:
            return found
    raise AssertionError(f"it took {took_s:.1f} s")
