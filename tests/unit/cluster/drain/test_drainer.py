"""The drain watcher against a Kubernetes API over HTTP, with a fake Ray cluster that drains on request."""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.cluster.drain.drain_actions import DrainPolicy, KubeNode, RayNode, leaving_pods
from peagle.cluster.drain.drainer import Drainer
from peagle.cluster.drain.ray_nodes import RayControl, RayUnreachable
from peagle.errors import ClusterError
from support.kubernetes.kubernetes_api import Json, KubernetesApi, client_of, node, ray_cluster, ray_pod, ray_service
from support.waiting import until

POLICY = DrainPolicy(patience_s=30.0, finish_s=60.0)
NOW_S = 1000.0


class StandInRay(RayControl):
    """A Ray cluster with one node per pod of `pods`. `end` is a raylet's end once it is idle."""

    def __init__(self, *pods: str) -> None:
        self.known = [RayNode(f"id-{pod}", pod, None) for pod in pods]
        self.asked: list[tuple[str, float]] = []
        self.answers = True
        self.looks = 0

    def nodes(self) -> Sequence[RayNode]:
        self.looks += 1
        if not self.answers:
            raise RayUnreachable("10.0.0.1:6379: no answer")
        return list(self.known)

    def drain(self, node_id: str, deadline_ms: int, reason: str) -> None:
        if not self.answers:
            raise RayUnreachable("10.0.0.1:6379: no answer")
        self.asked.append((node_id, deadline_ms / 1000))
        self.known = [replace(each, deadline_ms=deadline_ms) if each.id == node_id else each for each in self.known]

    async def looked_at_again(self, times: int = 5) -> None:
        """Wait until the watcher has decided again a few times, with the current state."""
        wanted = self.looks + times
        await until(lambda: self.looks >= wanted)

    def end(self, pod: str) -> None:
        self.known = [each for each in self.known if each.pod != pod]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.cluster.drain.drainer.TICK_S", 0.05)


@pytest.fixture
async def server() -> AsyncIterator[KubernetesApi]:
    """Two nodes with one worker each, and a head on a third."""
    async with KubernetesApi() as serving:
        for name in ("a", "b", "c"):
            await serving.put("nodes", node(name))
        await serving.put("pods", ray_pod("head", on="c", kind="head", ip="10.0.0.1"))
        await serving.put("pods", ray_pod("w-a", on="a"))
        await serving.put("pods", ray_pod("w-b", on="b"))
        await serving.put("pods", ray_pod("other", on="a", release="another"))
        yield serving


@pytest.fixture
def ray() -> StandInRay:
    return StandInRay("head", "w-a", "w-b", "other")


@asynccontextmanager
async def draining(server: KubernetesApi, ray: StandInRay) -> AsyncIterator[list[str]]:
    """A running drain watcher; yields the addresses of the Ray clusters that it calls."""
    addresses: list[str] = []

    def connect(address: str) -> RayControl:
        addresses.append(address)
        return ray

    async with client_of(server) as api:
        task = asyncio.create_task(Drainer(api, "r", POLICY, connect, now_s=lambda: NOW_S).run())
        await until(lambda: server.count("watch", "pods") > 0 and server.count("watch", "nodes") > 0)
        yield addresses
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def cordon(server: KubernetesApi, name: str, on: bool = True) -> None:
    await server.merge("nodes", name, {"spec": {"unschedulable": on}})


async def test_a_cordoned_node_is_drained_emptied_and_released(server: KubernetesApi, ray: StandInRay) -> None:
    async with draining(server, ray) as addresses:
        asked_api = server.count("list", "nodes"), server.count("watch", "nodes")
        await cordon(server, "a")
        await until(lambda: bool(ray.asked))
        told_by = server.count("list", "nodes"), server.count("watch", "nodes")
        assert told_by == asked_api, "it was told by the watch that ran, not by the next one or another list"
        await ray.looked_at_again()
        assert "w-a" in server.names("pods"), "it was evicted before it had finished"
        ray.end("w-a")
        await until(lambda: "w-a" not in server.names("pods"))
    (asked,) = ray.asked
    assert asked[0] == "id-w-a"
    assert asked[1] == NOW_S + 90
    assert addresses == ["10.0.0.1:6379"]
    assert server.names("pods") == {"head", "w-b", "other"}


async def test_while_nothing_leaves_ray_is_not_asked(
    server: KubernetesApi, ray: StandInRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()

    def looked(nodes: Mapping[str, KubeNode], *rest: Any) -> Any:
        seen.update(nodes["a"].taints)
        return leaving_pods(nodes, *rest)

    monkeypatch.setattr("peagle.cluster.drain.drainer.leaving_pods", looked)
    async with draining(server, ray) as addresses:
        await server.merge("nodes", "a", {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})
        await until(lambda: "x" in seen)
        assert addresses == []


async def test_a_termination_taint_is_as_good_as_a_cordon(server: KubernetesApi, ray: StandInRay) -> None:
    async with draining(server, ray):
        taints = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]
        await server.merge("nodes", "b", {"spec": {"taints": taints}})
        await until(lambda: bool(ray.asked))
    assert ray.asked[0][0] == "id-w-b"
    assert ray.asked[0][1] == NOW_S + 60


async def test_a_node_cordoned_while_the_watch_is_down_is_seen(server: KubernetesApi, ray: StandInRay) -> None:
    async with draining(server, ray):
        server.mute.add("nodes")
        await cordon(server, "a")
        server.compact()
        server.drop_connections()
        server.mute.clear()
        await until(lambda: bool(ray.asked))


async def test_a_head_that_does_not_answer_is_waited_for(
    server: KubernetesApi, ray: StandInRay, caplog: pytest.LogCaptureFixture
) -> None:
    ray.answers = False
    with caplog.at_level(logging.WARNING):
        async with draining(server, ray):
            await cordon(server, "a")
            await until(lambda: "does not answer" in caplog.text)
            await ray.looked_at_again()
            assert server.names("pods") >= {"w-a"}
            ray.answers = True
            await until(lambda: bool(ray.asked))
    assert caplog.text.count("does not answer") == 1, "it was said again at every step"


async def test_a_head_that_moves_is_found_again(server: KubernetesApi, ray: StandInRay) -> None:
    async with draining(server, ray) as addresses:
        await cordon(server, "a")
        await until(lambda: bool(ray.asked))
        await server.remove("pods", "head", "serving")
        await server.put("pods", ray_pod("head-2", on="c", kind="head", ip="fd00::2"))
        await until(lambda: "[fd00::2]:6379" in addresses)


async def test_an_eviction_refused_by_a_budget_is_tried_until_it_is_allowed(
    server: KubernetesApi, ray: StandInRay, caplog: pytest.LogCaptureFixture
) -> None:
    server.budgeted.add("w-a")
    ray.end("w-a")
    with caplog.at_level(logging.WARNING):
        async with draining(server, ray):
            await cordon(server, "a")
            await until(lambda: server.count("create", "pods/eviction") > 2)
            assert "disruption budget" in caplog.text
            server.budgeted.clear()
            await until(lambda: "w-a" not in server.names("pods"))


async def test_a_pod_that_was_replaced_meanwhile_is_not_evicted_for_its_forerunner(
    server: KubernetesApi, ray: StandInRay
) -> None:
    """The watch lags: it still shows the old pod, whose uid is in the eviction."""
    ray.end("w-a")
    async with draining(server, ray):
        server.mute.add("pods")
        await server.remove("pods", "w-a", "serving")
        await server.put("pods", ray_pod("w-a", on="b"))
        await cordon(server, "a")
        await until(lambda: server.count("create", "pods/eviction") > 1)
    assert "w-a" in server.names("pods")


async def test_a_right_that_lacks_for_eviction_is_named(
    server: KubernetesApi, ray: StandInRay, caplog: pytest.LogCaptureFixture
) -> None:
    server.refused.add(("create", "pods/eviction"))
    ray.end("w-a")
    with caplog.at_level(logging.WARNING):
        async with draining(server, ray):
            await cordon(server, "a")
            await until(lambda: "does not let this account evict pod w-a" in caplog.text)


async def groups(server: KubernetesApi) -> list[Json]:
    async with client_of(server) as api:
        (cluster,), _ = await api.list("/apis/ray.io/v1/namespaces/serving/rayclusters", "list rayclusters")
    found: list[Json] = cluster["spec"]["workerGroupSpecs"]
    return found


async def test_kuberay_is_told_to_make_another_pod_before_the_old_one_is_gone(
    server: KubernetesApi, ray: StandInRay, caplog: pytest.LogCaptureFixture
) -> None:
    await server.put("rayclusters", ray_cluster(replicas=2))
    with caplog.at_level(logging.INFO):
        async with draining(server, ray):
            await cordon(server, "a")
            await until(lambda: "replaces pods of group cpu: w-a" in caplog.text)
            await until(lambda: bool(ray.asked))
    (group,) = await groups(server)
    assert group["scaleStrategy"] == {"workersToDelete": ["w-a"]}
    assert group["replicas"] == 2
    assert server.count("patch", "rayclusters") == 1


async def test_a_group_that_has_moved_meanwhile_is_left_as_it_is(
    server: KubernetesApi, ray: StandInRay, caplog: pytest.LogCaptureFixture
) -> None:
    await server.put("rayclusters", ray_cluster(replicas=2))
    with caplog.at_level(logging.WARNING):
        async with draining(server, ray):
            server.mute.add("rayclusters")
            moved = ray_cluster(replicas=2)
            moved["spec"]["workerGroupSpecs"][0]["groupName"] = "gpu"
            await server.put("rayclusters", moved)
            await cordon(server, "a")
            await until(lambda: "patch Ray cluster r-ray" in caplog.text)
    (group,) = await groups(server)
    assert (group["groupName"], group.get("scaleStrategy")) == ("gpu", None)


async def test_a_running_cluster_gets_the_number_of_pods_that_its_service_asks_for(
    server: KubernetesApi, ray: StandInRay
) -> None:
    await server.put("rayclusters", ray_cluster(replicas=2))
    await server.put("rayservices", ray_service(replicas=2))
    async with draining(server, ray):
        await server.put("rayservices", ray_service(replicas=3))
        await until(lambda: server.count("patch", "rayclusters") > 0)
    (group,) = await groups(server)
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (3, 3, 3)
    assert server.count("patch", "rayclusters") == 1


async def test_without_the_right_to_see_nodes_it_does_not_start(server: KubernetesApi, ray: StandInRay) -> None:
    server.refused.add(("list", "nodes"))
    async with client_of(server) as api:
        with pytest.raises(ClusterError, match="list and watch nodes"):
            await Drainer(api, "r", POLICY, lambda _: ray).run()


async def test_the_command_ends_in_peace_when_it_is_told_to(server: KubernetesApi, tmp_path: Path) -> None:
    process = await command(server, tmp_path)
    await until(lambda: server.count("watch", "pods") > 0, within_s=60)
    process.terminate()
    async with asyncio.timeout(30):
        _, said = await process.communicate()
    assert process.returncode == 0, said
    assert b"Watching 3 nodes and 3 Ray pods" in said


async def test_the_command_says_in_one_line_which_right_it_lacks(server: KubernetesApi, tmp_path: Path) -> None:
    server.refused.add(("list", "pods"))
    process = await command(server, tmp_path)
    async with asyncio.timeout(60):
        _, said = await process.communicate()
    assert process.returncode == 1
    (line,) = said.decode().splitlines()
    assert line.startswith("peagle: Kubernetes does not let this account list and watch pods in serving")


async def command(server: KubernetesApi, folder: Path) -> asyncio.subprocess.Process:
    (folder / "kubeconfig").write_text(server.kubeconfig())
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "peagle.cli", "cluster", "drain", "--release", "r"),
        env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_a_head_on_a_node_that_leaves_is_only_spoken_of(
    server: KubernetesApi, ray: StandInRay, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with draining(server, ray):
            await cordon(server, "c")
            await until(lambda: "the Ray head head stays there" in caplog.text)
    assert ray.asked == []
    assert "head" in server.names("pods")
