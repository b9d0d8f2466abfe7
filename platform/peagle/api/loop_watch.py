"""Measures how late an event loop runs its timers."""

import asyncio
from collections.abc import Callable

# A stall that readers of a stream would notice lasts longer than this.
PERIOD_S = 0.1


async def watch_loop(observe: Callable[[float], None]) -> None:
    """Report the loop's delay in seconds to `observe`, ten times a second, forever."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        observe(max(0.0, loop.time() - due_s))
