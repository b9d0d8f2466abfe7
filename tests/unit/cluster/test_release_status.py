"""`peagle cluster status`: answers of the API and of the release's head pod."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from peagle.cluster.release_status import ReleaseStatus, read_status
from peagle.cluster.table import print_status
from peagle.errors import ClusterError, ConfigError
from support.kubernetes.kubernetes_api import KubernetesApi, client_of, node, ray_cluster, ray_pod

TELL_FLEET = ("head", "ray-head", "peagle status --json")
REPLICA = {
    "id": "x1",
    "node": "10.0.0.9",
    "state": "ready",
    "depths": [7, 7, 5],
    "depth_effective": 6.4,
    "acceptance_length": 3.21,
    "running_requests": 2,
    "waiting_requests": 0,
}


def rayservice(**status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "peagle", "app.kubernetes.io/instance": "r"}
    application = {
        "status": "RUNNING",
        "serveDeploymentStatuses": {"Ingress": {"status": "HEALTHY"}, "m": {"status": "UPDATING"}},
    }
    active = {"rayClusterName": "r-ray", "applicationStatuses": {"peagle": application}}
    return {
        "metadata": {"name": "r", "namespace": "serving", "labels": labels},
        "status": {"activeServiceStatus": active, "conditions": [{"type": "Ready", "status": "True"}], **status},
    }


@pytest.fixture
async def server() -> AsyncIterator[KubernetesApi]:
    fleet = json.dumps({"models": [{"name": "m", "replicas": [REPLICA]}]})
    async with KubernetesApi(printed={TELL_FLEET: fleet}) as serving:
        await serving.put("rayservices", rayservice())
        await serving.put("nodes", node("a", unschedulable=True))
        await serving.put("pods", ray_pod("head", on="b", kind="head"))
        await serving.put("pods", ray_pod("w-a", on="a"))
        await serving.put("pods", ray_pod("w-x", on=None))
        reason = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
        condition = {"type": "PodScheduled", "status": "False", "message": reason}
        await serving.merge("pods", "w-x", {"status": {"conditions": [condition]}}, "serving")
        yield serving


async def status(server: KubernetesApi, release: str = "r") -> ReleaseStatus:
    async with client_of(server) as api:
        return await read_status(api, release)


async def test_services_pods_and_replicas_are_shown(server: KubernetesApi, capsys: pytest.CaptureFixture[str]) -> None:
    print_status(await status(server))
    said = capsys.readouterr().out
    assert "r: Ready · Ingress healthy, m updating" in said
    assert "a (cordoned)" in said
    assert "Insufficient nvidia.com/gpu" in said
    assert "7 / 6.4" in said
    assert "3.21" in said


async def test_pods_that_could_not_be_made_are_told_with_the_reason(server: KubernetesApi) -> None:
    waits = {"type": "Ready", "status": "False", "message": "RayService is initializing"}
    await server.put("rayservices", rayservice(activeServiceStatus={}, conditions=[waits]))
    cluster = ray_cluster(replicas=1)
    cluster["metadata"]["labels"]["app.kubernetes.io/name"] = "peagle"
    failure = {"type": "ReplicaFailure", "status": "True", "message": "pods are forbidden: exceeded quota: small"}
    cluster["status"] = {"conditions": [{"type": "HeadPodReady", "status": "False"}, failure]}
    await server.put("rayclusters", cluster)
    assert (await status(server)).services[0].problem == "pods are forbidden: exceeded quota: small"


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("Deployment 'm' has 1 replicas that have taken more than 30s to be scheduled.", "exceeded quota"),
        (
            "The deployment failed to start 1 times.\npeagle.errors.StartupError: No headers. Add them.",
            "No headers. Add them.",
        ),
    ],
    ids=["waits", "failed"],
)
async def test_a_failed_start_of_the_next_cluster_is_told_first_and_a_wait_hides_no_reason(
    server: KubernetesApi, message: str, problem: str
) -> None:
    part = {"status": "UPDATING", "message": message}
    applications = {"peagle": {"status": "DEPLOYING", "message": "", "serveDeploymentStatuses": {"m": part}}}
    await server.put("rayservices", rayservice(pendingServiceStatus={"applicationStatuses": applications}))
    cluster = ray_cluster(replicas=1)
    cluster["metadata"]["labels"]["app.kubernetes.io/name"] = "peagle"
    cluster["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}
    await server.put("rayclusters", cluster)
    assert (await status(server)).services[0].problem == problem


async def test_a_pod_says_why_it_has_no_node_or_no_image(server: KubernetesApi) -> None:
    """KubeRay's init container is the first to pull the image; Ray's container only waits for it."""
    waits = {"name": "ray-worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    pulls = {"name": "wait-gcs-ready", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    statuses = {"initContainerStatuses": [{"name": "own-cache", "state": {"terminated": {}}}, pulls]}
    await server.merge("pods", "w-a", {"status": {**statuses, "containerStatuses": [waits]}}, "serving")
    problems = {pod.name: pod.problem for pod in (await status(server)).pods}
    assert problems["w-a"] == "ImagePullBackOff not found"
    assert problems["w-x"] == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    statuses["initContainerStatuses"].pop()
    await server.merge("pods", "w-a", {"status": {**statuses, "containerStatuses": [waits]}}, "serving")
    assert {pod.name: pod.problem for pod in (await status(server)).pods}["w-a"] == "PodInitializing"


async def test_a_release_that_does_not_answer_yet_is_shown_all_the_same(
    server: KubernetesApi, capsys: pytest.CaptureFixture[str]
) -> None:
    server.printed.clear()
    waits = {"type": "Ready", "status": "False", "message": "Waiting for replicas"}
    active = {"rayClusterName": "r-ray"}
    await server.put("rayservices", rayservice(activeServiceStatus=active, conditions=[waits]))
    found = await status(server)
    assert (found.fleet, found.services[0].problem) == (None, "Waiting for replicas")
    assert "peagle status --json: not found" in found.fleet_problem
    print_status(found)
    assert "Replicas cannot be read" in capsys.readouterr().out


async def test_the_head_that_is_asked_serves_now(server: KubernetesApi) -> None:
    await server.put("rayservices", rayservice(activeServiceStatus={"rayClusterName": "r-next"}))
    assert (await status(server)).fleet_problem == "no head pod of r is running"
    assert not server.count("get", "pods/exec")


async def test_without_the_right_to_run_commands_the_rest_is_shown(server: KubernetesApi) -> None:
    server.refused.add(("get", "pods/exec"))
    found = await status(server)
    assert len(found.pods) == 3
    assert "does not let this account run a command in pod head" in found.fleet_problem


@pytest.mark.parametrize("printed", ["Segmentation fault", "[]", "{}"])
async def test_what_is_no_fleet_is_said_to_be_none(server: KubernetesApi, printed: str) -> None:
    server.printed[TELL_FLEET] = printed
    assert (await status(server)).fleet_problem == "peagle status --json in pod head printed no fleet"


async def test_without_the_right_to_see_nodes_the_rest_is_shown(server: KubernetesApi) -> None:
    server.refused.add(("list", "nodes"))
    assert [pod.is_node_leaving for pod in (await status(server)).pods] == [False] * 3


async def test_an_unknown_release_and_a_missing_right_are_named(server: KubernetesApi) -> None:
    with pytest.raises(ConfigError, match="it has no RayService in serving"):
        await status(server, "absent")
    server.refused.add(("list", "rayservices"))
    with pytest.raises(ClusterError, match="does not let this account list rayservices"):
        await status(server)
