"""A Ray cluster that does not answer, or not to this token, is told apart from a fault, and soon."""

import socket
import time

import pytest

from peagle.cluster.drain import ray_nodes
from peagle.cluster.drain.ray_nodes import Gcs, RayUnreachable


def test_a_head_that_is_gone_is_told_before_its_client_waits_for_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and never listened on
        started_s = time.monotonic()
        with pytest.raises(RayUnreachable, match=r"127\.0\.0\.1:\d+: .*refused"):
            Gcs(f"127.0.0.1:{taken.getsockname()[1]}").nodes()
    assert time.monotonic() - started_s < 2 * ray_nodes.TIMEOUT_S


@pytest.mark.parametrize("kind", ["AuthenticationError", "RaySystemError"])
def test_what_ray_says_of_a_wrong_token_or_a_fault_of_its_own_is_no_crash(kind: str) -> None:
    exceptions = pytest.importorskip("ray.exceptions")

    class Refusing:
        def get_all_node_info(self, timeout: float) -> None:
            raise getattr(exceptions, kind)("no such token")

    gcs = Gcs("head:6379")
    gcs._client = Refusing()
    with pytest.raises(RayUnreachable, match=r"head:6379: .*no such token"):
        gcs.nodes()
    assert gcs._client is None, "the next question begins anew"
