"""Ray's own node draining, asked of the GCS of a Ray cluster."""

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from peagle.cluster.drain.drain_actions import RayNode
from peagle.errors import StartupError

GCS_PORT = 6379
TIMEOUT_S = 3.0


class RayControl(Protocol):
    """What draining needs of one Ray cluster. Calls block for a few seconds at most."""

    def nodes(self) -> Sequence[RayNode]:
        """The living nodes. Raises RayUnreachable where the cluster does not answer."""

    def drain(self, node_id: str, deadline_ms: int, reason: str) -> None:
        """Mark a node as draining: Ray places nothing new there, and Serve moves its replicas. Raises as `nodes`."""


class RayUnreachable(Exception):  # noqa: N818 - a state that passes, caught where it arises
    """The GCS of a Ray cluster does not answer now."""


class Gcs:
    """A `RayControl` over the GCS at `address` (host:port). KubeRay names each node's instance after its pod.

    `connect` makes a client of the GCS at an address; Ray's own by default.
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

        # The other reason, idle termination, is refused by a node that has work.
        preemption = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        self._ask(lambda client: client.drain_node(node_id, preemption, reason, deadline_ms, timeout=TIMEOUT_S))

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        try:
            from ray._raylet import GcsClient  # type: ignore[attr-defined]  # Ray ships no types
            from ray.exceptions import AuthenticationError, RaySystemError, RpcError
        except ImportError as error:
            raise StartupError(
                f"Ray 2.60's node draining is not there ({error})", "Install ray[serve]==2.60.0."
            ) from None
        try:
            if self._client is None:
                # Ray's client would wait 40 s for one that is not there, in which its node's other replicas wait, too.
                host, _, port = self._address.rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S).close()
                self._client = (self._connect or GcsClient)(address=self._address)
            return question(self._client)
        except (AuthenticationError, RpcError, RaySystemError, OSError) as error:
            # A head that restarts has another GCS behind the same address.
            self._client = None
            raise RayUnreachable(f"{self._address}: {str(error).partition(chr(10))[0]}") from None
