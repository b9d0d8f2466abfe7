"""Watches a replica's engine: a stalled engine gets no new requests, and a hanging engine is ended and replaced."""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from peagle.errors import EngineStalledError
from peagle.host import processes
from peagle.router.engine_pulse import EnginePulse, Pulse

# A child of Ray Serve's logger, which replicas print from level INFO.
logger = logging.getLogger("ray.serve.engine")

PERIOD_S = 0.5


def end_engine() -> None:
    """Kill every process below this one: a stopped or stuck process reacts to no other signal."""
    processes.send(processes.descendants(), signal.SIGKILL)


class EngineWatch:
    """Checks one engine twice a second.

    Args:
        pulse: Updated at every engine step.
        probe: Call that the engine answers between two steps.
        prefill: Prompt tokens that the next step may prefill, and the engine's prefill rate in tokens per second.
        moves: Whether requests waiting for their first token at a stalled engine may move to another replica.
        end: Ends the engine; its requests then fail as when an engine dies.
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
        """Check the engine until it is ended."""
        while True:
            await asyncio.sleep(PERIOD_S)
            if self._look() is Pulse.HUNG:
                return

    def _look(self) -> Pulse:
        seen = self._pulse.look(time.monotonic(), *self._prefill())
        stalled = seen is not Pulse.BEATS
        if stalled and not self.stalled:
            self.stalls += 1
            logger.warning("The engine has not responded for %.1f s; it gets no new requests", self._pulse.silent_s)
        elif self.stalled and not stalled:
            logger.warning("The engine responds again")
        self.stalled = stalled
        if stalled:
            for until in self._waiting:
                until.reschedule(asyncio.get_running_loop().time())
            self._waiting.clear()
        if seen is Pulse.HUNG:
            logger.error("The engine has not responded for %.0f s; ending it", self._pulse.silent_s)
            self._end()
        elif self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._ask(), name="engine probe")
        return seen

    async def _ask(self) -> None:
        try:
            await self._probe()
        except Exception as error:  # a dead engine is detected elsewhere
            logger.info("The engine does not answer: %r", error)
        else:
            self._pulse.answered()

    async def movable(self, replies: AsyncGenerator[Any, None], *, last_try: bool = False) -> AsyncGenerator[Any, None]:
        """Pass on `replies`. On its last try a request waits, since a stalled engine may respond again.

        Raises EngineStalledError if the engine stalls before the first reply and the request may move.
        """
        moves = self._moves and not last_try
        try:
            async with asyncio.timeout(0.0 if self.stalled and moves else None) as until:
                if moves and not self.stalled:
                    self._waiting.add(until)
                try:
                    reply = await anext(replies, self)
                finally:
                    self._waiting.discard(until)
        except TimeoutError:
            if not until.expired():
                raise
        # Also if vLLM mistook this cancellation for the client's and returned an answer.
        if until.expired():
            raise EngineStalledError("The engine of the replica that had this request does not answer.")
        while reply is not self:
            yield reply
            reply = await anext(replies, self)
