"""Keeps requests away from draining nodes while there are others.

Serve starts a replacement for each replica on a draining node, and keeps routing to the old replica until the new one
runs: minutes, for a large model. Here the old replica gets no new requests after a second, unless it is the last.
"""

import functools
import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]  # Ray ships no types
from ray.serve._private.request_router import PowerOfTwoChoicesRequestRouter
from ray.serve.request_router import PendingRequest, ReplicaID, RunningReplica

from peagle.serve.routing.turn_taking import TurnTakingRouter

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 3.0


class OnNode(Protocol):
    """An object on a Ray node; `node_id` is hexadecimal."""

    @property
    def node_id(self) -> str: ...


Placed = TypeVar("Placed", bound=OnNode)


def staying(candidates: Sequence[Placed], draining: Collection[str]) -> list[Placed]:
    """Return the `candidates` that are not on draining nodes, or all if every node is draining: late beats lost."""
    kept = [candidate for candidate in candidates if candidate.node_id not in draining]
    return kept or list(candidates)


class DrainingNodes:
    """Ids of the draining Ray nodes, read once a second by a thread of this process.

    If the GCS does not answer, the last answer stays valid.

    Args:
        read: Reads them from the GCS; may block.
        connected: Whether this process still belongs to that cluster; if not, reading stops.
        period_s: Interval between readings.
    """

    def __init__(
        self, read: Callable[[], Collection[str]], connected: Callable[[], bool], period_s: float = PERIOD_S
    ) -> None:
        self._read, self._connected, self._period_s = read, connected, period_s
        self._answers = True
        self.ids: frozenset[str] = frozenset()
        threading.Thread(target=self._follow, name="draining-nodes", daemon=True).start()

    def _follow(self) -> None:
        pause = threading.Event()
        while self._connected():
            try:
                self.ids = frozenset(self._read())
                self._answers = True
            except Exception as error:  # whatever Ray raises, routing goes on
                if self._answers:
                    logger.warning("Draining nodes cannot be read, the last ones hold: %s", error)
                self._answers = False
            pause.wait(self._period_s)


def draining_nodes() -> DrainingNodes:
    """Return this process's instance for its current cluster."""
    return _of_cluster(ray.get_runtime_context().gcs_address)


@functools.cache
def _of_cluster(address: str) -> DrainingNodes:
    gcs = GcsClient(address=address)
    return DrainingNodes(lambda: gcs.get_draining_nodes(timeout=TIMEOUT_S), lambda: _is_connected(address))


def _is_connected(address: str) -> bool:
    try:
        return ray.is_initialized() and bool(ray.get_runtime_context().gcs_address == address)
    except ray.exceptions.RaySystemError:  # it was shut down between the two
        return False


class DrainAwareRouter(TurnTakingRouter, PowerOfTwoChoicesRequestRouter):  # type: ignore[misc]  # Ray ships no types
    """Ray's default choice among replicas, without those on draining nodes."""

    def initialize_state(self, *, replica_wait_s: float | None = None, **_: Any) -> None:
        self.begin_turns(replica_wait_s)
        self._draining = draining_nodes()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        (self._absence.ended if replicas else self._absence.began)()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        if not self.curr_replicas:  # Serve's controller finds out later
            self._event_loop.call_soon_threadsafe(self._absence.began)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        chosen: list[list[RunningReplica]] = await super().choose_replicas(candidate_replicas, pending_request)
        draining = self._draining.ids
        if not any(replica.node_id in draining for rank in chosen for replica in rank):
            return chosen
        candidates = staying(candidate_replicas, draining)
        return [random.sample(candidates, min(2, len(candidates)))]
