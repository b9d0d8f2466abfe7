"""Watches a replica's engine: one that stalls gets nothing new, and one that hangs is ended, so that it is replaced."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from peagle.errors import EngineStalledError
from peagle.host import processes
from peagle.router.engine_pulse import EnginePulse, Pulse

# Below Ray Serve's own, which a replica prints from the level of information on.
logger = logging.getLogger("ray.serve.engine")

PERIOD_S = 0.5


def end_engine() -> None:
    """Kill every process below this one: a process that is stopped or stuck hears nothing less."""
    processes.send(processes.descendants(), signal.SIGKILL)


class EngineWatch:
    """Looks at one engine twice a second.

    Args:
        pulse: Told of every step, by whoever hears of them.
        probe: Asks the engine something that it answers between two steps.
        prefill: Prompt tokens that the next step may prefill, and how many the engine prefills in a second.
        moves: Whether requests that wait for their first token at an engine that stalls may find another.
        end: Ends the engine; what it was answering then fails as it does wherever an engine dies.
    """

    def __init__(
        self,
        pulse: EnginePulse,
        probe: Callable[[], Any],
        prefill: Callable[[], tuple[int, float]],
        *,
        moves: bool,
        end: Callable[[], None] = end_engine,
    ) -> None:
        self._pulse, self._probe, self._prefill, self._moves, self._end = pulse, probe, prefill, moves, end
        self._probing: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Timeout] = set()
        self.stalled = False
        self.stalls = 0

    async def run(self) -> None:
        """Look until the engine is given up."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._look() is Pulse.HUNG:
                return

    def _look(self) -> Pulse:
        seen = self._pulse.look(time.monotonic(), *self._prefill())
        stalled = seen is not Pulse.BEATS
        if stalled and not self.stalled:
            self.stalls += 1
            logger.warning("The engine has given no sign of life for %.1f s; it gets nothing new", self._pulse.silent_s)
        elif self.stalled and not stalled:
            logger.warning("The engine is back")
        self.stalled = stalled
        if stalled:
            for until in self._waiting:
                until.reschedule(asyncio.get_running_loop().time())
            self._waiting.clear()
        if seen is Pulse.HUNG:
            logger.error("The engine has given no sign of life for %.0f s and is ended", self._pulse.silent_s)
            self._end()
        elif self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._ask(), name="engine probe")
        return seen

    async def _ask(self) -> None:
        try:
            await self._probe()
        except Exception as error:  # one that has died is found otherwise
            logger.info("The engine does not answer: %r", error)
        else:
            self._pulse.answered()

    async def movable(self, replies: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """Pass on `replies`.

        Raises EngineStalledError where the engine stalls before the first, and another may take the request.
        """
        try:
            async with asyncio.timeout(0.0 if self.stalled and self._moves else None) as until:
                if self._moves and not self.stalled:
                    self._waiting.add(until)
                try:
                    reply = await anext(replies, self)
                finally:
                    self._waiting.discard(until)
        except TimeoutError:
            if not until.expired():
                raise
        # Also where vLLM took its cancellation for the client's, and made an answer of it.
        if until.expired():
            raise EngineStalledError("The engine of the replica that had this request does not answer.")
        while reply is not self:
            yield reply
            reply = await anext(replies, self)
