"""Ends calls to lost nodes, which gRPC alone detects only after minutes.

A process that dies closes its connections; a machine without power or network does not. Ray's GCS health-checks every
node, and Serve's controller removes the replicas of a lost node from every router's list.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

import ray

logger = logging.getLogger(__name__)

PERIOD_S = 5.0


class Call(Protocol):
    """A call to a replica."""

    def cancel(self) -> None: ...


class OpenCalls:
    """Open calls of one router.

    Args:
        alive: Returns the ids of the live nodes; may block.
        period_s: Interval between checks while calls are open at replicas that have left.
    """

    def __init__(self, alive: Callable[[], Collection[str]], period_s: float = PERIOD_S) -> None:
        self._alive, self._period_s = alive, period_s
        self._open: dict[tuple[str, str], tuple[str, Call]] = {}
        self._left: set[str] = set()
        self._ending: asyncio.Task[None] | None = None

    def sent(self, request_id: str, replica_id: str, node_id: str, call: Call) -> None:
        self._open[request_id, replica_id] = node_id, call

    def ended(self, request_id: str, replica_id: str) -> None:
        self._open.pop((request_id, replica_id), None)

    def left(self, replica_ids: Collection[str]) -> None:
        """Watch open calls at replicas that left the list, until they end or their node dies; needs a running loop."""
        self._left.update(replica_ids)
        if self._at_those_that_left() and (self._ending is None or self._ending.done()):
            self._ending = asyncio.create_task(self._end_lost())

    def _at_those_that_left(self) -> list[tuple[str, str]]:
        return [key for key in self._open if key[1] in self._left]

    async def _end_lost(self) -> None:
        # A replica that left may only be stopping and still answer, and Ray may learn of a death later than Serve.
        while self._at_those_that_left():
            try:
                alive = await asyncio.to_thread(self._alive)
            except Exception as error:  # whatever Ray raises, it is asked again
                logger.warning("Which nodes live cannot be read: %r", error)
            else:
                for key in self._at_those_that_left():
                    node_id, call = self._open[key]
                    if node_id not in alive:
                        self.ended(*key)
                        call.cancel()
            await asyncio.sleep(self._period_s)
        self._left.clear()


def alive_nodes() -> set[str]:
    """Return the hexadecimal ids of the live Ray nodes, from the GCS."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
