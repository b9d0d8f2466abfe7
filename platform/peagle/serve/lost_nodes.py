"""Ends calls to nodes that are gone without a word, which gRPC alone finds out after minutes.

A process that dies closes its connections; a machine without power or network does not. Ray's GCS asks every node for
signs of life, and Serve's controller takes the replicas of one that gives none from every router's list.
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

import ray


class Call(Protocol):
    """A call that a replica answers."""

    def cancel(self) -> None: ...


class OpenCalls:
    """What one router has sent and not heard the end of. `alive` says the ids of the nodes that live; it may wait."""

    def __init__(self, alive: Callable[[], Collection[str]]) -> None:
        self._alive = alive
        self._open: dict[tuple[str, str], tuple[str, Call]] = {}
        self._ending: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def sent(self, request_id: str, replica_id: str, node_id: str, call: Call) -> None:
        self._open[request_id, replica_id] = node_id, call

    def ended(self, request_id: str, replica_id: str) -> None:
        self._open.pop((request_id, replica_id), None)

    def end_lost(self) -> asyncio.Task[None]:
        """Begin to cancel what is open at nodes that are no more; to be called on a running loop."""
        self._ending = asyncio.create_task(self._end_lost())
        return self._ending

    async def _end_lost(self) -> None:
        alive = await asyncio.to_thread(self._alive)
        for node_id, call in [*self._open.values()]:
            if node_id not in alive:
                call.cancel()


def alive_nodes() -> set[str]:
    """The ids of the Ray nodes that live, in hexadecimal, as the GCS has them."""
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
