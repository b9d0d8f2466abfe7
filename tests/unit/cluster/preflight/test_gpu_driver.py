"""Preflight: the driver on every node that a worker group with GPUs could use."""

from collections.abc import Mapping

import pytest

from peagle.cluster.preflight.outcome import Check, Outcome
from support.kubernetes.kubernetes_api import KubernetesApi
from support.kubernetes.preflight_cluster import RAW, checks, gpu_node, only, values

NEWER, OLDER = "nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major"
SUBJECT = "NVIDIA driver for b200"


def drivers(found: list[Check]) -> list[Check]:
    return [check for check in found if check.subject.startswith("NVIDIA driver")]


@pytest.mark.parametrize("labels", [{NEWER: "580"}, {OLDER: "580"}, {NEWER: "595", OLDER: "595"}])
async def test_a_driver_that_runs_the_image_passes(server: KubernetesApi, labels: Mapping[str, str]) -> None:
    await server.put("nodes", gpu_node("gpu-1", driver=labels))
    (found,) = drivers(await checks(server))
    assert (found.subject, found.outcome) == (SUBJECT, Outcome.PASS)
    assert found.detail == f"nodes: 1 x {next(iter(labels.values()))}"


@pytest.mark.parametrize("labels", [{NEWER: "570"}, {OLDER: "570"}, {NEWER: "", OLDER: "570"}])
async def test_an_old_driver_fails_with_node_version_and_fix(server: KubernetesApi, labels: Mapping[str, str]) -> None:
    await server.put("nodes", gpu_node("gpu-2"))
    await server.put("nodes", gpu_node("gpu-1", driver=labels))
    found = await only(server)
    assert (found.subject, found.outcome) == (SUBJECT, Outcome.FAIL)
    assert found.detail == "the GPU image's CUDA 13 needs 580 or newer: gpu-1 has 570"
    assert found.fix.startswith("Upgrade NVIDIA's driver there, or select other nodes with workerGroups.b200.")


async def test_the_newer_label_counts_if_both_are_set(server: KubernetesApi) -> None:
    await server.put("nodes", gpu_node("gpu-1", driver={OLDER: "580", NEWER: "550"}))
    assert (await only(server)).detail.endswith("gpu-1 has 550")


async def test_a_node_without_the_label_is_a_warning_that_says_how_to_check(server: KubernetesApi) -> None:
    await server.put("nodes", gpu_node("gpu-1", driver={}))
    found = await only(server)
    assert (found.subject, found.outcome) == (SUBJECT, Outcome.WARN)
    assert found.detail.endswith("no label tells the version on gpu-1")
    assert "nvidia-smi" in found.fix


async def test_an_unlabelled_node_beside_labelled_ones_is_named(server: KubernetesApi) -> None:
    await server.put("nodes", gpu_node("gpu-2", driver={NEWER: "unknown"}))
    found = await only(server)
    assert (found.outcome, found.detail.rpartition(" on ")[2]) == (Outcome.WARN, "gpu-2")


@pytest.mark.parametrize(("count", "rest"), [(4, ""), (5, ", and 1 more node"), (9, ", and 5 more nodes")])
async def test_many_nodes_are_summarized(server: KubernetesApi, count: int, rest: str) -> None:
    for index in range(1, count + 1):
        await server.put("nodes", gpu_node(f"gpu-{index}", driver={NEWER: "535"}))
    named = ", ".join(f"gpu-{index} has 535" for index in range(1, 5))
    assert (await only(server)).detail == f"the GPU image's CUDA 13 needs 580 or newer: {named}{rest}"


async def test_a_node_that_no_group_could_use_does_not_count(server: KubernetesApi) -> None:
    old = {NEWER: "535"}
    await server.put("nodes", gpu_node("other-product", "NVIDIA-A100", driver=old))
    await server.put("nodes", gpu_node("no-gpus", gpus=0, driver=old))
    tainted = gpu_node("tainted", driver=old)
    tainted["spec"]["taints"].append({"key": "team", "value": "a", "effect": "NoSchedule"})
    await server.put("nodes", tainted)
    (found,) = drivers(await checks(server))
    assert (found.outcome, found.detail) == (Outcome.PASS, "nodes: 1 x 580")


async def test_each_group_is_checked_on_its_own_nodes(server: KubernetesApi) -> None:
    await server.put("nodes", gpu_node("gpu-2", "NVIDIA-H200", driver={NEWER: "550"}))
    h200 = {"gpus": 1, "acceleratorType": "H200", "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H200"}}
    cpu = {"gpus": 0, "nodeSelector": {}}
    found = drivers(await checks(server, values(workerGroups={**RAW["workerGroups"], "h200": h200, "cpu": cpu})))
    outcomes = {check.subject: check.outcome for check in found}
    assert outcomes == {SUBJECT: Outcome.PASS, "NVIDIA driver for h200": Outcome.FAIL}


async def test_nodes_that_may_not_be_read_are_reported_once(server: KubernetesApi) -> None:
    server.refused.add(("list", "nodes"))
    assert (await only(server)).subject == "nodes"
