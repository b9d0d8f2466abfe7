"""Ray's own node draining, through the GCS of a Ray cluster."""

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from peagle.cluster.drain.drain_actions import RayNode
from peagle.errors import StartupError

GCS_PORT = 6379
TIMEOUT_S = 3.0


class RayControl(Protocol):
    """Node draining of one Ray cluster. Calls block for a few seconds at most."""

    def nodes(self) -> Sequence[RayNode]:
        """Return the live nodes. Raises RayUnreachable if the cluster does not answer."""

    def drain(self, node_id: str, deadline_ms: int, reason: str) -> None:
        """Mark a node as draining: Ray places nothing new there, and Serve moves its replicas. Raises as `nodes`."""


class RayUnreachable(Exception):  # noqa: N818 - a temporary state, caught by the caller
    """The GCS of a Ray cluster does not answer now."""


class Gcs:
    """A `RayControl` through the GCS at `address` (host:port). KubeRay names each node's instance after its pod.

    `connect` creates a GCS client for an address; Ray's own by default.
    """

    def __init__(self, address: str, connect: Callable[..., Any] | None = None) -> None:
        self._address, self._connect = address, connect
        self._client: Any = None

    def nodes(self) -> Sequence[RayNode]:
        from ray.core.generated.gcs_pb2 import GcsNodeInfo

        found = self._ask(lambda client: client.get_all_node_info(timeout=TIMEOUT_S))
        deadlines = self._ask(lambda client: client.get_draining_nodes(timeout=TIMEOUT_S))
        alive = {node_id.hex(): node for node_id, node in found.items() if node.state == GcsNodeInfo.ALIVE}
        return [RayNode(node_id, node.instance_id, deadlines.get(node_id)) for node_id, node in alive.items()]

    def drain(self, node_id: str, deadline_ms: int, reason: str) -> None:
        from ray.core.generated.autoscaler_pb2 import DrainNodeReason

        # A node with work refuses the other reason, idle termination.
        preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        self._ask(lambda client: client.drain_node(node_id, preemption, reason, deadline_ms, timeout=TIMEOUT_S))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            from ray._raylet import GcsClient  # type: ignore[attr-defined]  # Ray ships no types
            from ray.exceptions import AuthenticationError, RaySystemError, RpcError
        except ImportError as error:
            raise StartupError(
                f"Ray 2.60's node draining is missing ({error})", "Install ray[serve]==2.60.0."
            ) from None
        try:
            if self._client is None:
                # Ray's client would wait 40 s for a missing GCS, and the other replicas of its node with it.
                host, _, port = self._address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S).close()
                self._client = (self._connect or GcsClient)(address=self._address)
            return question(self._client)
        except (AuthenticationError, RpcError, RaySystemError, OSError) as error:
            # A restarted head has a new GCS at the same address.
            self._client = None
            raise RayUnreachable(f"{self._address}: {str(error).partition(chr(10))[0]}") from None
