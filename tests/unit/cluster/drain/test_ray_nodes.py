"""An unreachable Ray cluster, or one with another token, is detected soon and distinguished from a fault."""

import socket
from typing import Any

import pytest

from peagle.cluster.drain.ray_nodes import Gcs, RayUnreachable


def test_a_head_that_is_gone_is_told_before_its_client_waits_for_it() -> None:
    def waits(address: str) -> Any:
        raise AssertionError("Ray's client waits 40 s for a head that is not there")

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listened on
        with pytest.raises(RayUnreachable, match=r"127\.0\.0\.1:\d+: .*refused"):
            Gcs(f"127.0.0.1:{taken.getsockname()[1]}", waits).nodes()


@pytest.mark.parametrize("kind", ["AuthenticationError", "RaySystemError"])
def test_what_ray_says_of_a_wrong_token_or_a_fault_of_its_own_is_no_crash(kind: str) -> None:
    exceptions = pytest.importorskip("ray.exceptions")

    class Refusing:
        def get_all_node_info(self, timeout: float) -> None:
            raise getattr(exceptions, kind)("no such token")

    connected: list[str] = []

    def connect(address: str) -> Refusing:
        connected.append(address)
        return Refusing()

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        gcs = Gcs(address, connect)
        for _ in range(2):  # the next call starts again
            with pytest.raises(RayUnreachable, match=rf"{address}: .*no such token"):
                gcs.nodes()
    assert connected == [address, address]
