"""How long an event loop was busy with something else than what waited for it."""

import asyncio
from collections.abc import Callable

# Anything that readers of a stream would see lasts longer.
PERIOD_S = 0.1


async def watch_loop(observe: Callable[[float], None]) -> None:
    """Tell `observe`, ten times a second and for ever, by how many seconds the loop was late."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        observe(max(0.0, loop.time() - due_s))
