"""Ends calls to nodes that are gone without a word, which gRPC alone finds out after minutes.

A process that dies closes its connections; a machine without power or network does not. Ray's GCS asks every node for
signs of life, and Serve's controller takes the replicas of one that gives none from every router's list.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

import ray

logger = logging.getLogger(__name__)

PERIOD_S = 5.0


class Call(Protocol):
    """A call that a replica answers."""

    def cancel(self) -> None: ...


class OpenCalls:
    """What one router has sent and not heard the end of.

    Args:
        alive: Says the ids of the nodes that live; it may wait.
        period_s: Between two questions while something is open at replicas that have left.
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
        """Watch what is open at replicas that left the list, until it ends or its node is dead; on a running loop."""
        self._left.update(replica_ids)
        if self._at_those_that_left() and (self._ending is None or self._ending.done()):
            self._ending = asyncio.create_task(self._end_lost())

    def _at_those_that_left(self) -> list[tuple[str, str]]:
        return [key for key in self._open if key[1] in self._left]

    async def _end_lost(self) -> None:
        # Whoever left may only be stopping: then it answers what it has, and Ray may learn of a death later than Serve.
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
    """The ids of the Ray nodes that live, in hexadecimal, as the GCS has them."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
