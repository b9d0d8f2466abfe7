"""Bounds how long requests wait for a replica while a model has none that could take them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from peagle.errors import NoReplicaError


class Absence:
    """Whether any replica is there, and the requests that wait for one. It belongs to one event loop.

    Args:
        patience_s: How long a request waits while none is; None for ever.
    """

    def __init__(self, patience_s: float | None) -> None:
        self._patience_s = patience_s
        self._absent = False
        self._waiting: set[asyncio.Timeout] = set()

    def began(self) -> None:
        """Note that no replica is left; again, it changes nothing."""
        self._set(True)

    def ended(self) -> None:
        """Note that one is there."""
        self._set(False)

    def _set(self, absent: bool) -> None:
        if absent is not self._absent:
            self._absent = absent
            for waiting in self._waiting:
                waiting.reschedule(self._until_s())

    def _until_s(self) -> float | None:
        """When a wait that is open now ends, on the loop's clock."""
        if not self._absent or self._patience_s is None:
            return None
        return asyncio.get_running_loop().time() + self._patience_s

    @asynccontextmanager
    async def bounded(self) -> AsyncIterator[None]:
        """Wait within for a replica. Raises NoReplicaError where none has come."""
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
