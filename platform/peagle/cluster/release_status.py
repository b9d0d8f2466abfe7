"""Status of a release: its RayServices, their pods, and every replica's report."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peagle.cluster.drain.drain_actions import INSTANCE, MADE_FOR, NODE_TYPE, RAY_CLUSTER
from peagle.cluster.kube import Json, KubeApi
from peagle.engine.start_causes import FAILED_START, tell_briefly
from peagle.errors import ClusterError, ConfigError

# The head pod's container in the chart, and the command there that prints the fleet, which answers only locally.
HEAD_CONTAINER = "ray-head"
TELL_FLEET = ("peagle", "status", "--json")


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A RayService: its true conditions, and the status of each Serve deployment."""

    name: str
    ray_cluster: str
    conditions: tuple[str, ...]
    deployments: Mapping[str, str]
    problem: str


@dataclass(frozen=True, slots=True)
class PodStatus:
    """A Ray pod: its node, and the reason why it is not ready."""

    name: str
    kind: str
    ray_cluster: str
    node: str
    is_node_leaving: bool
    phase: str
    is_ready: bool
    restarts: int
    problem: str


@dataclass(frozen=True, slots=True)
class ReleaseStatus:
    """Status of a release. `fleet` is the answer of `GET /fleet`, or None with the reason in `fleet_problem`."""

    services: tuple[ServiceStatus, ...]
    pods: tuple[PodStatus, ...]
    fleet: Json | None
    fleet_problem: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def read_status(api: KubeApi, release: str) -> ReleaseStatus:
    """Read a release's status from the Kubernetes API, and from the server in its head pod.

    Raises:
        ClusterError: RayServices, RayClusters or pods cannot be listed.
        ConfigError: The namespace has no such release.
    """
    query = {"labelSelector": f"{INSTANCE}={release},app.kubernetes.io/name=peagle"}
    path = f"/apis/ray.io/v1/namespaces/{api.namespace}"
    services, _ = await api.list(f"{path}/rayservices", f"list rayservices in {api.namespace}", query)
    if not services:
        fix = "Name another with --release or --namespace; helm list -A lists all releases."
        raise ConfigError("--release", release, f"it has no RayService in {api.namespace}", fix)
    clusters, _ = await api.list(f"{path}/rayclusters", f"list rayclusters in {api.namespace}", query)
    query = {"labelSelector": f"{INSTANCE}={release},{NODE_TYPE}"}
    pods, _ = await api.list(f"/api/v1/namespaces/{api.namespace}/pods", f"list pods in {api.namespace}", query)
    cordoned = await _cordoned(api)
    found = tuple(pod_status(each, cordoned) for each in pods)
    said = tuple(service_status(each, clusters) for each in services)
    fleet, problem = await _fleet(api, said[0], found)
    return ReleaseStatus(
        services=said,
        pods=found,
        fleet=fleet,
        fleet_problem=problem,
    )


def service_status(item: Json, clusters: Sequence[Json]) -> ServiceStatus:
    """Parse a RayService and its RayClusters from the API."""
    status = item.get("status") or {}
    active = status.get("activeServiceStatus") or status.get("pendingServiceStatus") or {}
    applications = (active.get("applicationStatuses") or {}).values()
    parts = {
        name: part.get("status", "?")
        for application in applications
        for name, part in (application.get("serveDeploymentStatuses") or {}).items()
    }
    messages = _messages(status)
    conditions = status.get("conditions") or []
    held = tuple(each["type"] for each in conditions if each["status"] == "True")
    refused = [each.get("message", "") for each in conditions if each["type"] == "Ready" and each["status"] != "True"]
    name = item["metadata"]["name"]
    failed = [
        condition.get("message", "")
        for cluster in clusters
        if (cluster["metadata"].get("labels") or {}).get(MADE_FOR) == name
        for condition in (cluster.get("status") or {}).get("conditions") or []
        # Pods that could not be created, for example because of a quota.
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
    ]
    # Serve's other messages only tell that something takes long, where a pod's failure tells why.
    starts = [tell_briefly(message) for message in messages if FAILED_START in message]
    problem = next(filter(None, [*starts, *failed, *messages, *refused]), "")
    return ServiceStatus(name, active.get("rayClusterName", "-"), held, parts, problem)


def _messages(status: Json) -> list[str]:
    """Return Serve's messages about what is not healthy, of the cluster that serves and of the next."""
    applications = [
        application
        for part in ("activeServiceStatus", "pendingServiceStatus")
        for application in ((status.get(part) or {}).get("applicationStatuses") or {}).values()
    ]
    deployments = [
        deployment
        for application in applications
        for deployment in (application.get("serveDeploymentStatuses") or {}).values()
        if deployment.get("status") != "HEALTHY"
    ]
    return [each.get("message", "") for each in (*applications, *deployments)]


def pod_status(item: Json, cordoned: frozenset[str]) -> PodStatus:
    """Parse a pod from the API."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    node = (item.get("spec") or {}).get("nodeName") or ""
    conditions = {each["type"]: each for each in status.get("conditions") or []}
    containers = status.get("containerStatuses") or []
    # While an init container waits, Ray's container says PodInitializing: the init container has the real reason.
    all_of_it = [*(status.get("initContainerStatuses") or []), *containers]
    waiting = [each["state"]["waiting"] for each in all_of_it if "waiting" in (each.get("state") or {})]
    unscheduled = conditions.get("PodScheduled", {})
    reasons = sorted(waiting, key=lambda each: each.get("reason") == "PodInitializing")
    problem = next((f"{each.get('reason', '')} {each.get('message', '')}".strip() for each in reasons), "")
    if unscheduled.get("status") == "False":
        problem = unscheduled.get("message", "") or problem
    return PodStatus(
        name=metadata["name"],
        kind=labels.get(NODE_TYPE, "?"),
        ray_cluster=labels.get(RAY_CLUSTER, "?"),
        node=node or "-",
        is_node_leaving=node in cordoned,
        phase="Ending" if "deletionTimestamp" in metadata else status.get("phase", "?"),
        is_ready=conditions.get("Ready", {}).get("status") == "True",
        restarts=sum(each.get("restartCount", 0) for each in containers),
        problem=problem,
    )


async def _cordoned(api: KubeApi) -> frozenset[str]:
    """Return the cordoned nodes; empty if this account may not list nodes."""
    try:
        nodes, _ = await api.list("/api/v1/nodes", "list nodes")
    except ClusterError as error:
        if error.status != 403:
            raise
        return frozenset()
    return frozenset(each["metadata"]["name"] for each in nodes if (each.get("spec") or {}).get("unschedulable"))


async def _fleet(api: KubeApi, service: ServiceStatus, pods: tuple[PodStatus, ...]) -> tuple[Json | None, str]:
    heads = (each for each in pods if each.kind == "head" and each.ray_cluster == service.ray_cluster)
    head = next((each for each in heads if each.phase == "Running"), None)
    if head is None:
        return None, f"no head pod of {service.name} is running"
    try:
        printed = await api.run(head.name, HEAD_CONTAINER, TELL_FLEET, f"run a command in pod {head.name}")
        fleet = json.loads(printed)
        if not isinstance(fleet, dict) or not isinstance(fleet.get("models"), list):
            raise ValueError(printed)
    except ClusterError as error:
        if error.status == 401:
            raise
        return None, str(error)
    except ValueError:
        return None, f"{' '.join(TELL_FLEET)} in pod {head.name} printed no fleet"
    return fleet, ""
