"""A worker pod that ends: its own Ray node drains, and it waits for real processes titled as Ray titles replicas."""

import subprocess
import time
from collections.abc import Iterator, Sequence

import pytest

from peagle.cluster.drain import RayNode
from peagle.cluster.leave import ADDRESS, POD, leave, main, replicas_here


class Recorded:
    """A Ray cluster of two nodes that remembers what it was told."""

    def __init__(self) -> None:
        self.drained: list[tuple[str, int]] = []

    def nodes(self) -> Sequence[RayNode]:
        return [RayNode("a", "pod-a", None), RayNode("b", "pod-b", None)]

    def drain(self, node_id: str, deadline_ms: int, reason: str) -> None:
        self.drained.append((node_id, deadline_ms))


@pytest.fixture
def replica() -> Iterator[subprocess.Popen[bytes]]:
    """A process titled as Ray titles a Serve replica."""
    before = replicas_here()
    process = subprocess.Popen(["ray::ServeReplica:peagle:PeagleServer:small", "60"], executable="/bin/sleep")
    deadline = time.monotonic() + 5
    while replicas_here() == before and time.monotonic() < deadline:
        time.sleep(0.01)
    yield process
    process.kill()
    process.wait()


def test_its_own_node_drains_by_the_deadline() -> None:
    ray, begun_ms = Recorded(), 1000 * time.time()
    assert leave(ray, "pod-b", timeout_s=60, replicas=lambda: 0)
    ((node, deadline_ms),) = ray.drained
    assert node == "b"
    assert begun_ms + 60_000 - 1 <= deadline_ms <= begun_ms + 61_000


def test_it_waits_until_the_last_replica_has_left(replica: subprocess.Popen[bytes]) -> None:
    others = replicas_here() - 1

    def here() -> int:
        count = replicas_here() - others
        if count:
            replica.kill()
            replica.wait()
        return count

    assert leave(Recorded(), "pod-b", timeout_s=20, replicas=here, poll_s=0.01)
    assert replica.poll() is not None


def test_it_gives_up_after_the_timeout(replica: subprocess.Popen[bytes]) -> None:
    assert not leave(Recorded(), "pod-b", timeout_s=0.05, poll_s=0.01)
    assert replica.poll() is None


def test_outside_a_ray_pod_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--timeout-s", "1"], environment={POD: "x"}) == 2
    assert ADDRESS in capsys.readouterr().err
