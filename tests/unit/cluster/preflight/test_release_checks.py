"""Preflight: a complete cluster passes, and each missing part is found with its fix."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from peagle.cluster.preflight.capacity import pod_kinds, tolerates
from peagle.cluster.preflight.facts import pod_requests
from peagle.cluster.preflight.outcome import Outcome
from peagle.cluster.preflight.values import load_values
from peagle.errors import ClusterError, ConfigError
from support.kubernetes.kubernetes_api import KubernetesApi
from support.kubernetes.preflight_cluster import MODEL, RAW, checks, gpu_node, only, values
from support.paths import REPOSITORY

CHART = REPOSITORY / "helm" / "peagle"


async def test_a_cluster_that_has_everything_passes(server: KubernetesApi) -> None:
    found = await checks(server)
    assert [check for check in found if check.outcome is not Outcome.PASS] == []
    assert "2 of 2 pods fit" in next(check.detail for check in found if check.subject == "room for b200")
    assert "c2VjcmV0" not in str(found)


async def test_nothing_is_changed(server: KubernetesApi) -> None:
    await checks(server)
    assert {(verb, resource) for verb, resource, _ in server.requests if verb not in ("get", "list")} == {
        ("create", "selfsubjectaccessreviews")
    }


async def test_an_old_kubernetes_is_refused(server: KubernetesApi) -> None:
    server.replies["/version"] = {"gitVersion": "v1.28.9-eks"}
    found = await only(server)
    assert (found.subject, found.outcome) == ("Kubernetes", Outcome.FAIL)


async def test_kinds_that_only_a_switch_needs_are_asked_for_with_it(server: KubernetesApi) -> None:
    found = await only(server, values(monitoring={"podMonitors": {"enabled": True}}))
    assert (found.subject, found.outcome) == ("podmonitors.monitoring.coreos.com", Outcome.FAIL)


async def test_gpus_of_another_kind_are_named(server: KubernetesApi) -> None:
    await server.put("nodes", gpu_node("gpu-1", "NVIDIA-H200"))
    failed = [check for check in await checks(server) if check.outcome is Outcome.FAIL]
    assert [check.subject for check in failed] == ["GPUs for b200", "room for b200"]
    assert "NVIDIA-H200 on 1" in failed[0].detail
    assert "nodeSelector" in failed[0].fix


async def test_an_accelerator_type_that_is_not_the_label_s_is_questioned(server: KubernetesApi) -> None:
    groups = {"b200": {**RAW["workerGroups"]["b200"], "nodeSelector": {}}}
    await server.put("nodes", gpu_node("gpu-1", "NVIDIA-H200"))
    found = await only(server, values(workerGroups=groups))
    assert (found.subject, found.outcome) == ("GPUs for b200", Outcome.WARN)


async def test_gpus_in_use_are_no_room_but_the_release_s_own_are(server: KubernetesApi) -> None:
    spec = {"nodeName": "gpu-1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "5"}}}]}
    pod = {"metadata": {"name": "busy", "namespace": "serving", "labels": {}}, "spec": spec, "status": {}}
    await server.put("pods", pod)
    found = await only(server)
    assert found.subject == "room for b200"
    assert found.detail.startswith("0 of 2 pods fit, each with 4 nvidia.com/gpu")
    assert "gpu-1 has 3 nvidia.com/gpu left" in found.detail
    assert (await only(server, scale_up=True)).outcome is Outcome.WARN
    await server.merge("pods", "busy", {"metadata": {"labels": {"app.kubernetes.io/instance": "r"}}}, "serving")
    assert all(check.outcome is Outcome.PASS for check in await checks(server, values(ray={"upgradeStrategy": "None"})))


async def test_a_second_cluster_beside_the_running_one_needs_room_of_its_own(server: KubernetesApi) -> None:
    spec = {"nodeName": "gpu-1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}]}
    labels = {"app.kubernetes.io/instance": "r"}
    await server.put("pods", {"metadata": {"name": "w", "namespace": "serving", "labels": labels}, "spec": spec})
    found = await only(server)
    assert (found.subject, found.outcome) == ("room for an upgrade", Outcome.WARN)
    assert found.detail == "next to the running cluster 1 of 2 pods of b200 fit"
    await server.put("nodes", gpu_node("gpu-2"))
    assert all(check.outcome is Outcome.PASS for check in await checks(server))


async def test_what_one_group_may_have_takes_no_room_that_another_must_have(server: KubernetesApi) -> None:
    groups = {
        "a": {"gpus": 4, "minReplicas": 1, "maxReplicas": 4},
        "b": {"gpus": 4, "minReplicas": 1, "maxReplicas": 4},
    }
    found = await checks(
        server, values(workerGroups=groups, autoscaling={"enabled": True}, ray={"upgradeStrategy": "None"})
    )
    rooms = {check.subject: (check.outcome, check.detail) for check in found if check.subject.startswith("room for")}
    assert {name: outcome for name, (outcome, _) in rooms.items()} == {
        "room for a": Outcome.WARN,
        "room for b": Outcome.WARN,
        "room for head": Outcome.PASS,
    }
    assert rooms["room for b"][1].startswith("1 of at most 4 pods fit")


async def test_a_cordoned_or_unready_node_is_no_room(server: KubernetesApi) -> None:
    await server.merge("nodes", "gpu-1", {"spec": {"unschedulable": True}})
    assert {check.subject for check in await checks(server) if check.outcome is Outcome.FAIL} >= {"room for b200"}


async def test_models_that_ask_for_more_gpus_than_groups_have_are_refused(server: KubernetesApi) -> None:
    found = await only(server, values(workerGroups={"b200": {"gpus": 4}}))
    assert (found.subject, found.detail) == ("B200 replicas", "models ask for 8 GPUs, worker groups have 4")


async def test_storage_that_is_not_there_is_named(server: KubernetesApi) -> None:
    found = await only(server, values(modelCache={"type": "pvc", "storageClassName": "slow"}))
    assert "available: fast" in found.detail
    found = await only(server, values(modelCache={"type": "pvc"}))
    assert "no default" in found.detail
    found = await only(server, values(modelCache={"type": "pvc", "existingClaim": "weights"}))
    assert found.subject == "claim weights"
    metadata = {"name": "weights", "namespace": "serving"}
    await server.put("persistentvolumeclaims", {"metadata": metadata, "spec": {"accessModes": ["ReadWriteOnce"]}})
    found = await only(server, values(modelCache={"type": "pvc", "existingClaim": "weights"}))
    assert (found.outcome, "3 pods share it" in found.detail) == (Outcome.WARN, True)


async def test_a_secret_that_serves_two_purposes_needs_both_keys(server: KubernetesApi) -> None:
    found = await only(server, values(apiKeys={"existingSecret": "hf"}))
    assert (found.subject, found.detail) == ("secret hf", "it has no key keys, only token")
    assert "--from-literal=keys=... --from-literal=token=..." in found.fix


async def test_a_secret_without_its_key_is_found(server: KubernetesApi) -> None:
    found = await only(server, values(apiKeys={"existingSecret": "hf"}, huggingFace={}))
    assert found.detail == "it has no key keys, only token"
    found = await only(server, values(envFromSecrets=["hf", "absent"]))
    assert found.subject == "secret absent"
    found = await only(server, values(apiKeys={"existingSecret": "gone"}))
    assert found.fix.startswith("Run: kubectl create secret generic gone -n serving --from-literal=keys=")


async def test_rays_token_is_looked_for_only_where_it_is_asked_for(server: KubernetesApi) -> None:
    found = await only(server, values(ray={"auth": {"mode": "token", "existingSecret": "absent"}}))
    assert found.subject == "secret absent"
    unused = values(ray={"auth": {"mode": "disabled", "existingSecret": "absent"}})
    assert all(check.outcome is Outcome.PASS for check in await checks(server, unused))


async def test_pod_security_that_refuses_a_pod_is_found(server: KubernetesApi) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await server.put("namespaces", {"metadata": {"name": "serving", "labels": labels}})
    assert all(check.outcome is Outcome.PASS for check in await checks(server))
    found = await only(server, values(modelCache={"type": "hostPath"}))
    assert "hostPath" in found.detail


async def test_what_may_not_be_seen_is_a_warning_and_what_may_not_be_made_a_failure(server: KubernetesApi) -> None:
    server.refused |= {("list", "deployments"), ("get", "secrets"), ("create", "rayservices")}
    found = {check.subject: check.outcome for check in await checks(server) if check.outcome is not Outcome.PASS}
    assert found == {"rights": Outcome.FAIL, "KubeRay operator": Outcome.WARN, "secret hf": Outcome.WARN}


async def test_a_cluster_that_does_not_answer_is_one_error(server: KubernetesApi) -> None:
    server.url = "http://127.0.0.1:9"
    with pytest.raises(ClusterError, match="does not answer"):
        await checks(server)


def test_a_pod_asks_for_its_containers_or_its_largest_init_container() -> None:
    def container(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **fields}

    spec = {
        "containers": [container("500m"), container("1")],
        "initContainers": [container("4"), container("250m", restartPolicy="Always")],
    }
    assert float(pod_requests(spec)["cpu"]) == 4.0
    assert float(pod_requests({**spec, "initContainers": [container("250m", restartPolicy="Always")]})["cpu"]) == 1.75


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_taints_are_tolerated_by_kubernetes_own_rule(toleration: dict[str, str], fits: bool) -> None:
    assert tolerates([toleration], {"key": "k", "value": "v", "effect": "NoSchedule"}) is fits


@pytest.mark.parametrize("path", sorted((CHART / "values").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_ready_file_is_understood(path: Path) -> None:
    wanted = load_values(CHART, [path])
    assert wanted.groups
    assert wanted.deployments


@pytest.mark.parametrize(
    ("name", "products"),
    [("gpt-oss-20b-h100", ["H100-80GB-HBM3"]), ("qwen3-coder-30b-mixed", ["H100-80GB-HBM3"] * 2 + ["L40S"] * 2)],
)
async def test_a_ready_file_fits_the_nodes_that_its_head_names_and_no_fewer(
    server: KubernetesApi, name: str, products: list[str]
) -> None:
    wanted = load_values(CHART, [CHART / "values" / f"{name}.yaml"])
    wanted = wanted.model_copy(update={"operator": values().operator, "network_policy": values().network_policy})
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    await server.put("storageclasses", {"metadata": {"name": "standard", "annotations": default}})
    await server.remove("nodes", "gpu-1")
    for index, product in enumerate(products):
        node = gpu_node(f"g{index}", f"NVIDIA-{product}", gpus=1)
        node["status"]["allocatable"] |= {"cpu": "12", "memory": "96Gi"}
        await server.put("nodes", node)
    assert [check for check in await checks(server, wanted) if check.outcome is not Outcome.PASS] == []
    await server.remove("nodes", f"g{len(products) - 1}")
    assert Outcome.FAIL in {check.outcome for check in await checks(server, wanted)}


def test_without_any_file_the_embedded_model_is_what_is_needed() -> None:
    assert (
        load_values(CHART, []).deployments == load_values(CHART, [CHART / "values" / "embedded-cpu.yaml"]).deployments
    )
    assert [kind.name for kind in pod_kinds(load_values(CHART, []))] == ["head", "cpu"]


@pytest.mark.parametrize("cpus", ["1500m", 1.5, "1.5"])
def test_a_pod_asks_for_parts_of_cpus_as_kubernetes_writes_them(cpus: Any) -> None:
    (_, group) = pod_kinds(values(workerGroups={"b200": {"gpus": 4, "cpus": cpus}}))
    assert float(group.asks["cpu"]) == 1.5


def test_null_unsets_what_all_groups_have() -> None:
    (group,) = values(workerGroups={"b200": {"nodeSelector": None, "tolerations": None}}).groups.values()
    assert (group.node_selector, group.tolerations, group.accelerator_type) == ({}, (), "B200")


def test_a_group_that_is_left_out_needs_no_room() -> None:
    groups = {**RAW["workerGroups"], "off": {"enabled": False}}
    assert set(values(workerGroups=groups).groups) == set(RAW["workerGroups"])


def test_wrong_values_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"values\.yaml: api\.cors_origins.*is not an origin"):
        values(api={"cors_origins": ["https://chat.example.org/"]})
    with pytest.raises(ConfigError, match=r"workerGroups\.b200\.gpus"):
        values(workerGroups={"b200": {"gpus": "many"}})
    with pytest.raises(ConfigError, match=r"workerGroups\.b200\.memory.*768GB.*not a kubernetes quantity"):
        values(workerGroups={"b200": {"memory": "768GB"}})
    with pytest.raises(ConfigError, match=r"head\.resources\.requests\.cpu"):
        values(head={"resources": {"requests": {"cpu": "2 cores"}}})
    with pytest.raises(ConfigError, match=r"workerGroups: b200 = 8"):
        values(workerGroups={"b200": 8})
    with pytest.raises(ConfigError, match="no model is enabled"):
        values(models={})
    with pytest.raises(ConfigError, match=r"models.m.deployment: replicas.max"):
        values(models={"m": {"deployment": {**MODEL, "replicas": {"min": 2, "max": 1}}}})
    with pytest.raises(ConfigError, match="there is no chart"):
        load_values(tmp_path, [])


async def test_the_command_prints_a_table_and_fails_with_1(server: KubernetesApi, tmp_path: Path) -> None:
    await server.remove("secrets", "hf", "serving")
    (tmp_path / "kubeconfig").write_text(server.kubeconfig())
    other = {"networkPolicy": {"operatorNamespace": "kuberay"}, "kuberay-operator": {"enabled": False}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({**RAW, **other}))
    ended = await run(tmp_path, "-f", str(tmp_path / "values.yaml"))
    assert ended.returncode == 1, ended.stderr
    assert "secret hf" in ended.stdout
    assert "1 fail" in ended.stdout
    ended = await run(tmp_path, "-f", str(tmp_path / "values.yaml"), "--json")
    assert [check["subject"] for check in json.loads(ended.stdout) if check["outcome"] == "fail"] == ["secret hf"]


@pytest.mark.parametrize("kubeconfig", ["{}", "a: [", "[]"])
async def test_a_context_that_is_not_there_is_one_line(tmp_path: Path, kubeconfig: str) -> None:
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(RAW))
    ended = await run(tmp_path, "-f", str(tmp_path / "values.yaml"), "--context", "absent")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("peagle: ")
    assert "--context = 'absent'" in ended.stderr


async def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "peagle.cli", "cluster", "preflight", "--chart", str(CHART), *arguments]
    environment = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig")}
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=120, env=environment
    )
