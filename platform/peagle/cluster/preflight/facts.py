"""Facts about a cluster for preflight, as frozen values, read once without changing anything."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias, TypeVar

from kubernetes.utils.quantity import parse_quantity

from peagle.cluster.drain.drain_actions import INSTANCE
from peagle.cluster.kube import Json, KubeApi
from peagle.cluster.preflight.values import Values
from peagle.errors import ClusterError

T = TypeVar("T")
# A fact, or the reason why this account may not read it.
Known: TypeAlias = T | ClusterError
Amounts = Mapping[str, Decimal]

RAY_KINDS = ("rayservices", "rayclusters")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node's resources: `capacity` is the total, `free` is not used by others, `own` is used by this release."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    is_ready: bool
    capacity: Amounts
    free: Amounts
    own: Amounts


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """A KubeRay operator, and whether it came with the release."""

    image: str
    namespace: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class CrdFacts:
    """A custom resource: its served versions, and the fields of its `spec` in `v1`."""

    versions: tuple[str, ...]
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts. A name that does not exist maps to None."""

    version: str
    namespace: str
    namespace_labels: Known[Mapping[str, str] | None]
    crds: Mapping[str, Known[CrdFacts | None]]
    operators: Known[tuple[OperatorFacts, ...]]
    nodes: Known[tuple[NodeFacts, ...]]
    storage_classes: Known[Mapping[str, bool]]
    claims: Mapping[str, Known[tuple[str, ...] | None]]
    secrets: Mapping[str, Known[frozenset[str] | None]]
    priority_classes: Mapping[str, Known[bool]]
    runtime_classes: Mapping[str, Known[bool]]
    quotas: Known[tuple[str, ...]]
    rights: Mapping[str, bool]


# Objects that `helm install` creates, as (group, resource) by display name.
INSTALLED: Mapping[str, tuple[str, str]] = {
    "RayServices": ("ray.io", "rayservices"),
    "Services": ("", "services"),
    "Roles": ("rbac.authorization.k8s.io", "roles"),
    "NetworkPolicies": ("networking.k8s.io", "networkpolicies"),
    "PodDisruptionBudgets": ("policy", "poddisruptionbudgets"),
}


def crds_needed(values: Values) -> list[str]:
    """Return the custom resources that the chart uses."""
    needed = [f"{kind}.ray.io" for kind in RAY_KINDS]
    if values.monitoring.pod_monitors.enabled:
        needed.append("podmonitors.monitoring.coreos.com")
    if values.monitoring.alerts.enabled:
        needed.append("prometheusrules.monitoring.coreos.com")
    if values.gateway_route.enabled:
        needed.append("httproutes.gateway.networking.k8s.io")
    return needed


def secrets_needed(values: Values) -> dict[str, set[str]]:
    """Return the existing secrets named in the values, with the keys that each must have."""
    store = values.gcs.external if values.gcs.store == "external" else values.gcs.bundled
    needed: dict[str, set[str]] = {name: set() for name in values.env_from_secrets}
    for name, key in (
        *((name, ".dockerconfigjson") for name in values.image.pull_secrets),
        (values.huggingface.existing_secret, values.huggingface.token_key),
        (values.api_keys.existing_secret, values.api_keys.key),
        (values.ray.auth.existing_secret if values.ray.auth.mode == "token" else "", "auth_token"),
        (store.existing_secret if values.gcs.store != "none" else "", store.password_key),
    ):
        if name:
            needed.setdefault(name, set()).add(key)
    return needed


async def gather(api: KubeApi, values: Values, release: str) -> Facts:
    """Read all facts. Raises ClusterError if the cluster does not answer or rejects the credentials."""
    version = await api.read("/version", "read the version")
    space = f"/api/v1/namespaces/{api.namespace}"
    groups = values.groups.values()
    priorities = {group.priority_class_name for group in groups} | {values.head.priority_class_name}
    rights = dict(INSTALLED)
    if values.drain.watcher.enabled:
        rights["ClusterRoles"] = ("rbac.authorization.k8s.io", "clusterroles")
    claim = values.model_cache.existing_claim if values.model_cache.type == "pvc" else ""
    return Facts(
        version=str(version["gitVersion"]),
        namespace=api.namespace,
        namespace_labels=await _known(_labels(api, space)),
        crds=await _each(crds_needed(values), lambda name: _crd(api, name)),
        operators=await _known(_operators(api, release)),
        nodes=await _known(_nodes(api, release)),
        storage_classes=await _known(_storage_classes(api)),
        claims=await _each([claim], lambda name: _claim(api, f"{space}/persistentvolumeclaims/{name}")),
        secrets=await _each(secrets_needed(values), lambda name: _secret(api, f"{space}/secrets/{name}")),
        priority_classes=await _each(
            priorities, lambda name: _exists(api, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")
        ),
        runtime_classes=await _each(
            {group.runtime_class_name for group in groups},
            lambda name: _exists(api, f"/apis/node.k8s.io/v1/runtimeclasses/{name}"),
        ),
        quotas=await _known(_quotas(api, space)),
        rights={name: await _may_create(api, *what) for name, what in rights.items()},
    )


async def _known(reading: Awaitable[T]) -> Known[T]:
    """Return a fact or the refusal. Raises ClusterError if the cluster does not answer."""
    try:
        return await reading
    except ClusterError as error:
        if error.status in (0, 401):
            raise
        return error


async def _each(names: Iterable[str], read: Callable[[str], Awaitable[T]]) -> dict[str, Known[T]]:
    wanted = sorted(name for name in set(names) if name)
    return dict(zip(wanted, await asyncio.gather(*(_known(read(name)) for name in wanted)), strict=True))


async def _found(api: KubeApi, path: str) -> Json | None:
    """Return an object, or None if it does not exist."""
    try:
        return await api.read(path, f"read {path.rpartition('/')[0].rpartition('/')[2]}")
    except ClusterError as error:
        if error.status != 404:
            raise
        return None


async def _exists(api: KubeApi, path: str) -> bool:
    return await _found(api, path) is not None


async def _labels(api: KubeApi, path: str) -> Mapping[str, str] | None:
    namespace = await _found(api, path)
    return None if namespace is None else namespace["metadata"].get("labels") or {}


async def _crd(api: KubeApi, name: str) -> CrdFacts | None:
    crd = await _found(api, f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    if crd is None:
        return None
    versions = [version for version in crd["spec"]["versions"] if version.get("served")]
    v1: Json = next((version for version in versions if version["name"] == "v1"), {})
    schema = v1.get("schema", {}).get("openAPIV3Schema", {}).get("properties", {}).get("spec", {})
    fields = frozenset(_fields(schema, depth=3))
    return CrdFacts(tuple(version["name"] for version in versions), fields)


def _fields(schema: Json, depth: int, prefix: str = "") -> Iterable[str]:
    for name, field in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        if depth > 1:
            yield from _fields(field, depth - 1, f"{prefix}{name}.")


async def _operators(api: KubeApi, release: str) -> tuple[OperatorFacts, ...]:
    query = {"labelSelector": "app.kubernetes.io/name=kuberay-operator"}
    found, _ = await api.list("/apis/apps/v1/deployments", "list deployments of all namespaces", query)
    return tuple(
        OperatorFacts(
            image=each["spec"]["template"]["spec"]["containers"][0]["image"],
            namespace=each["metadata"]["namespace"],
            is_own=_is_own(each, api, release),
        )
        for each in found
    )


def _is_own(item: Json, api: KubeApi, release: str) -> bool:
    metadata = item["metadata"]
    return metadata["namespace"] == api.namespace and (metadata.get("labels") or {}).get(INSTANCE) == release


async def _nodes(api: KubeApi, release: str) -> tuple[NodeFacts, ...]:
    nodes, _ = await api.list("/api/v1/nodes", "list nodes")
    running = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    pods, _ = await api.list("/api/v1/pods", "list pods of all namespaces", running)
    others: dict[str, dict[str, Decimal]] = {}
    own: dict[str, dict[str, Decimal]] = {}
    for pod in pods:
        if node := pod["spec"].get("nodeName"):
            used = own if _is_own(pod, api, release) else others
            _add(used.setdefault(node, {}), pod_requests(pod["spec"]))
    names = (item["metadata"]["name"] for item in nodes)
    return tuple(_node(item, others.get(name, {}), own.get(name, {})) for item, name in zip(nodes, names, strict=True))


def _node(item: Json, others: Amounts, own: Amounts) -> NodeFacts:
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    taints = list(spec.get("taints") or [])
    if spec.get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    conditions = status.get("conditions") or []
    capacity = {name: quantity(amount) for name, amount in (status.get("allocatable") or {}).items()}
    return NodeFacts(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        taints=tuple(taints),
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in conditions),
        capacity=capacity,
        free={name: amount - others.get(name, Decimal(0)) for name, amount in capacity.items()},
        own=own,
    )


def quantity(amount: str | float) -> Decimal:
    """Parse a Kubernetes quantity such as `500m` or `8Gi`."""
    parsed: Decimal = parse_quantity(amount)  # type: ignore[no-untyped-call]
    return parsed


def pod_requests(spec: Json) -> dict[str, Decimal]:
    """Return a pod's requests as the scheduler counts them: all containers together, or an init container if more."""
    together: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for container in spec.get("initContainers") or []:
        own = _requests(container)
        if container.get("restartPolicy") == "Always":  # a sidecar: it keeps running
            _add(together, own)
        else:
            _add(own, together)
            peak.update({name: max(amount, peak.get(name, Decimal(0))) for name, amount in own.items()})
    for container in spec.get("containers") or []:
        _add(together, _requests(container))
    return together | {name: max(amount, together.get(name, Decimal(0))) for name, amount in peak.items()}


def _requests(container: Json) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}


def _add(total: dict[str, Decimal], more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


async def _storage_classes(api: KubeApi) -> Mapping[str, bool]:
    """Return the storage classes, and whether each is the default."""
    found, _ = await api.list("/apis/storage.k8s.io/v1/storageclasses", "list storage classes")
    default = "storageclass.kubernetes.io/is-default-class"
    return {
        each["metadata"]["name"]: (each["metadata"].get("annotations") or {}).get(default) == "true" for each in found
    }


async def _claim(api: KubeApi, path: str) -> tuple[str, ...] | None:
    """Return the access modes of a claim."""
    claim = await _found(api, path)
    return None if claim is None else tuple(claim["spec"].get("accessModes") or ())


async def _secret(api: KubeApi, path: str) -> frozenset[str] | None:
    """Return the keys of a secret, without its values."""
    secret = await _found(api, path)
    return None if secret is None else frozenset(secret.get("data") or ())


async def _quotas(api: KubeApi, space: str) -> tuple[str, ...]:
    found, _ = await api.list(f"{space}/resourcequotas", "list resource quotas")
    return tuple(each["metadata"]["name"] for each in found)


async def _may_create(api: KubeApi, group: str, resource: str) -> bool:
    attributes = {"namespace": api.namespace, "verb": "create", "group": group, "resource": resource}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await api.create(path, "read its permissions", body)
    return bool(answer["status"]["allowed"])
