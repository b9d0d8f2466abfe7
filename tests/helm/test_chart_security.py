"""Security of the release's pods: `restricted` level, least privilege, closed network, no visible secrets."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from support.kubernetes.rendered_chart import (
    FULLNAME,
    MINIMAL,
    NAMESPACE,
    READY,
    Rendered,
    at,
    laid_over,
    ready_values,
    render,
)

# Kubernetes' own list for that level.
ALLOWED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"
}  # fmt: skip
HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")
UNRESTRICTED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "RDMA": (at("workerGroups.b200.rdmaDevices", 8), "worker group b200: RDMA needs the capability IPC_LOCK"),
    "node cache": (
        at("modelCache", {"type": "hostPath", "hostPath": "/models"}),
        "worker group b200: modelCache.type hostPath mounts a folder of the node",
    ),
}
FULL = laid_over(
    MINIMAL,
    {"autoscaling": {"enabled": True}, "apiKeys": {"existingSecret": "k"}, "huggingFace": {"existingSecret": "h"}},
)
RESTRICTED = {**{name: ready_values(name) for name in READY}, "minimal": MINIMAL, "full": FULL}


def violations(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the `restricted` level refuses of a pod."""
    spec, shared = pod["spec"], pod["spec"].get("securityContext", {})
    yield from (name for name in HOST_FIELDS if spec.get(name))
    for volume in spec.get("volumes", []):
        yield from (f"volume {kind}" for kind in volume if kind != "name" and kind not in ALLOWED_VOLUMES)
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        own = container.get("securityContext", {})
        both = {**shared, **own}
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield "runs as root"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield "may gain rights"
        if both.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
            yield "seccomp"
        capabilities = own.get("capabilities", {})
        if "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
            yield "capabilities"
        yield from (f"host port {port}" for port in container.get("ports", []) if port.get("hostPort"))


@pytest.mark.parametrize("case", RESTRICTED)
def test_every_pod_fits_the_restricted_level(case: str) -> None:
    rendered = render(RESTRICTED[case])
    assert {name: found for name, pod in rendered.pods() if (found := list(violations(pod)))} == {}
    assert "restricted" not in rendered.notes


@pytest.mark.parametrize("case", UNRESTRICTED)
def test_a_pod_that_cannot_be_restricted_is_named(case: str) -> None:
    changes, line = UNRESTRICTED[case]
    rendered = render(laid_over(MINIMAL, changes))
    assert {name for name, pod in rendered.pods() if list(violations(pod))} == {"worker b200"}
    assert line in rendered.notes


def test_the_autoscaler_beside_the_head_is_restricted_too() -> None:
    context = render(FULL).cluster["autoscalerOptions"]["securityContext"]
    assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_only_who_asks_kubernetes_for_something_has_a_token() -> None:
    with_token = {name for name, pod in render(MINIMAL).pods() if pod["spec"]["automountServiceAccountToken"]}
    assert with_token == {f"{FULLNAME}-drain", f"{FULLNAME}-uninstall"}
    with_token = {name for name, pod in render(FULL).pods() if pod["spec"]["automountServiceAccountToken"]}
    assert with_token == {f"{FULLNAME}-drain", f"{FULLNAME}-uninstall", "head"}


def rights(account: str) -> dict[tuple[str, str], list[str]]:
    """What the roles of an account let it do: verbs by (kind of the role, resource)."""
    rendered = render(FULL)
    return {
        (kind, resource): sorted(rule["verbs"])
        for kind in ("Role", "ClusterRole")
        for found in rendered.all(kind)
        if found["metadata"]["name"].endswith(account)
        for rule in found["rules"]
        for resource in rule["resources"]
    }


def test_the_drain_watcher_may_look_and_have_pods_replaced_and_nothing_else() -> None:
    assert rights("-drain") == {
        ("Role", "pods"): ["list", "watch"],
        ("Role", "pods/eviction"): ["create"],
        ("Role", "rayclusters"): ["list", "patch", "watch"],
        ("Role", "rayservices"): ["list", "watch"],
        ("ClusterRole", "nodes"): ["list", "watch"],
    }


def test_an_uninstall_may_take_away_what_is_ray_s_and_nothing_else() -> None:
    assert rights("-uninstall") == {
        ("Role", "pods"): ["delete", "list"],
        ("Role", "rayclusters"): ["list"],
        ("Role", "rayservices"): ["delete", "list"],
    }


def test_a_cluster_wide_name_is_this_release_s_own() -> None:
    rendered = render(MINIMAL)
    for kind in ("ClusterRole", "ClusterRoleBinding"):
        assert [found["metadata"]["name"] for found in rendered.all(kind)] == [f"{NAMESPACE}-{FULLNAME}-drain"]


def test_no_secret_is_written_but_rays_own() -> None:
    """Tokens and keys come from secrets that exist already."""
    rendered = render(FULL)
    assert [found["metadata"]["name"] for found in rendered.all("Secret")] == [f"{FULLNAME}-ray-auth"]
    for name, pod in rendered.pods():
        for container in pod["spec"]["containers"]:
            for entry in container.get("env", []):
                if re.search("TOKEN|PASSWORD|KEY|AUTH$", entry["name"]):
                    assert "secretKeyRef" in entry.get("valueFrom", {}), f"{name}: {entry['name']}"


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(rule["key"]) in rule["values"] for rule in selector.get("matchExpressions", [])
    )


@pytest.fixture(scope="module")
def closed() -> Rendered:
    return render(MINIMAL)


def allowed(rendered: Rendered, source: Mapping[str, str], target: Mapping[str, str], port: int) -> bool:
    """Whether the policies let a pod of the release with labels `source` reach one with labels `target`."""

    def opens(direction: str, own: Mapping[str, str], peer: Mapping[str, str], key: str) -> bool:
        for policy in rendered.all("NetworkPolicy"):
            if selects(policy["spec"]["podSelector"], own):
                for rule in policy["spec"].get(direction, []):
                    ports = {entry["port"] for entry in rule.get("ports", [])}
                    peers = rule.get(key)
                    reaches = peers is None or any(
                        "namespaceSelector" not in entry
                        and selects(entry.get("podSelector", {"matchLabels": {"": ""}}), peer)
                        for entry in peers
                    )
                    if reaches and (not ports or port in ports):
                        return True
        return False

    return opens("egress", source, target, "to") and opens("ingress", target, source, "from")


def labels_of(rendered: Rendered, component: str) -> Mapping[str, str]:
    pods = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for _, pod in rendered.pods()}
    labels: Mapping[str, str] = pods[component]["metadata"]["labels"]
    return labels


@pytest.mark.parametrize(
    ("source", "target", "port", "open_"),
    [
        ("worker", "head", 6379, True),
        ("head", "worker", 34567, True),
        ("worker", "worker", 8000, True),
        ("head", "redis", 6379, True),
        ("drain", "head", 6379, True),
        ("test", "worker", 8000, True),
        ("worker", "redis", 6379, False),
        ("test", "redis", 6379, False),
        ("test", "head", 6379, False),
        ("test", "head", 8265, False),
        ("drain", "worker", 34567, False),
        ("redis", "head", 6379, False),
    ],
)
def test_the_network_is_open_for_what_is_needed(
    closed: Rendered, source: str, target: str, port: int, open_: bool
) -> None:
    assert allowed(closed, labels_of(closed, source), labels_of(closed, target), port) is open_


@pytest.mark.parametrize("endpoint", ["", "http://collector.tracing:4317"])
def test_ray_pods_reach_a_collector_only_where_there_is_one(endpoint: str) -> None:
    opened = render(laid_over(MINIMAL, at("tracing.endpoint", endpoint))).policy("ray")["egress"]
    assert ({"ports": [{"port": 4317, "protocol": "TCP"}]} in opened) is bool(endpoint)
    assert len(opened) == (3 if endpoint else 2)


def test_the_network_is_closed_to_every_pod_of_the_release_by_default(closed: Rendered) -> None:
    deny = closed.policy("deny")
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert "egress" not in deny
    for name, pod in closed.pods():
        assert selects(deny["podSelector"], pod["metadata"]["labels"]), name


def test_an_operator_in_the_same_release_is_not_closed_in(closed: Rendered) -> None:
    operator = {"app.kubernetes.io/name": "kuberay-operator", "app.kubernetes.io/instance": "demo"}
    assert not [p for p in closed.all("NetworkPolicy") if selects(p["spec"]["podSelector"], operator)]
