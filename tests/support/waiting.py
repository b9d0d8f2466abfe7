"""Waits for changes made by another process or task."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 60.0
POLL_S = 0.25
Found = TypeVar("Found")


def eventually(look: Callable[[], Found], within_s: float = PATIENCE_S) -> Found:
    """Return the result of `look` once it finds something; fail after this many seconds."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"not there after {within_s:g} s"
        time.sleep(POLL_S)
    return found


async def until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait until something holds of which nothing tells."""
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
