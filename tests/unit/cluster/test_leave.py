"""An ending worker pod drains its own Ray node and waits for real processes titled like Serve's."""

import subprocess
from collections.abc import Callable, Iterator, Sequence

import pytest

from peagle.cluster.drain.drain_actions import RayNode
from peagle.cluster.drain.ray_nodes import RayControl, RayUnreachable
from peagle.cluster.leave import ADDRESS, HEAD_SILENT_S, POD, leave, main, serving_here


class Clock:
    """A clock that advances only while something sleeps."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now_s(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


def leaving(ray: RayControl, timeout_s: float, **serving: Callable[[], int]) -> bool:
    clock = Clock()
    return leave(ray, "pod-b", timeout_s, now_s=clock.now_s, sleep=clock.sleep, **serving)


class Recorded:
    """A Ray cluster of two nodes that records its calls."""

    def __init__(self) -> None:
        self.drained: list[tuple[str, int]] = []

    def nodes(self) -> Sequence[RayNode]:
        return [RayNode("a", "pod-a", None), RayNode("b", "pod-b", None)]

    def drain(self, node_id: str, deadline_ms: int, reason: str) -> None:
        self.drained.append((node_id, deadline_ms))


@pytest.fixture(params=["ray::ServeReplica:peagle:PeagleServer:small", "ray::ProxyActor"])
def serving(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process with Ray's title of a Serve replica or proxy."""
    before = serving_here()
    process = subprocess.Popen([request.param, "60"], executable="/bin/sleep")
    while serving_here() == before:
        assert process.poll() is None
    yield process
    process.kill()
    process.wait()


def test_its_own_node_drains_by_the_deadline() -> None:
    ray = Recorded()
    assert leaving(ray, timeout_s=60, serving=lambda: 0)
    assert ray.drained == [("b", 1_060_000)]


def test_it_waits_until_the_last_of_them_has_left(serving: subprocess.Popen[bytes]) -> None:
    others = serving_here() - 1

    def here() -> int:
        count = serving_here() - others
        if count:
            serving.kill()
            serving.wait()
        return count

    assert leaving(Recorded(), timeout_s=20, serving=here)
    assert serving.poll() is not None


def test_it_gives_up_after_the_timeout(serving: subprocess.Popen[bytes]) -> None:
    assert not leaving(Recorded(), timeout_s=5)
    assert serving.poll() is None


@pytest.mark.parametrize(("timeout_s", "ends"), [(HEAD_SILENT_S + 30, True), (HEAD_SILENT_S, False)])
def test_without_a_head_it_waits_no_longer_than_a_head_takes_to_restart(
    timeout_s: float, ends: bool, serving: subprocess.Popen[bytes]
) -> None:
    class Headless(Recorded):
        asked = 0

        def nodes(self) -> Sequence[RayNode]:
            self.asked += 1
            if self.asked > 2:
                raise RayUnreachable("head:6379: no answer")
            return super().nodes()

    ray = Headless()
    if ends:
        with pytest.raises(RayUnreachable):
            leaving(ray, timeout_s)
    else:
        assert not leaving(ray, timeout_s)
    assert ray.drained
    assert serving.poll() is None


def test_outside_a_ray_pod_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--timeout-s", "1"], environment={POD: "x"}) == 2
    assert ADDRESS in capsys.readouterr().err
