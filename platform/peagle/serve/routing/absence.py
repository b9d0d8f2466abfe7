"""Bounds how long requests wait while a model has no running replica."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from peagle.errors import NoReplicaError


class Absence:
    """Tracks whether any replica is running, and bounds the wait of requests. It belongs to one event loop.

    Args:
        patience_s: How long a request waits without a replica; None waits forever.
    """

    def __init__(self, patience_s: float | None) -> None:
        self._patience_s = patience_s
        self._absent = False
        self._waiting: set[asyncio.Timeout] = set()

    def began(self) -> None:
        """Record that no replica is left; repeated calls have no effect."""
        self._set(True)

    def ended(self) -> None:
        """Record that a replica is running."""
        self._set(False)

    def _set(self, absent: bool) -> None:
        if absent is not self._absent:
            self._absent = absent
            for waiting in self._waiting:
                if not waiting.expired():  # otherwise its request is about to give up, and it cannot be changed
                    waiting.reschedule(self._until_s())

    def _until_s(self) -> float | None:
        """Return the end of a current wait, on the loop's clock."""
        if not self._absent or self._patience_s is None:
            return None
        return asyncio.get_running_loop().time() + self._patience_s

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """Bound a wait for a replica. Raises NoReplicaError if none becomes available."""
        waiting = asyncio.timeout_at(self._until_s())
        try:
            async with waiting:
                self._waiting.add(waiting)
                try:
                    yield
                finally:
                    self._waiting.discard(waiting)
        except TimeoutError:
            if not waiting.expired():
                raise
            raise NoReplicaError("No replica of this model is running now; one is started or replaced.") from None
