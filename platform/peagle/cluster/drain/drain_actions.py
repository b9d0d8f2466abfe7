"""Decides how Ray workers leave nodes, and the sizes of worker groups. Pure: snapshots in, actions out.

A node is drained in steps, each repeated until the cluster shows its effect:

1. The Ray nodes of its worker pods are marked as draining. From then on request routers avoid their replicas while the
   model runs elsewhere, and Ray Serve starts a replacement for each; an old replica stops once its replacement runs, or
   when the deadline approaches, and finishes its requests first.
2. KubeRay is told to delete the pods. It creates new pods at once, which Kubernetes places on other nodes, and the old
   pods keep serving until they are idle (`peagle.cluster.leave`). The same is done for a pod that ends for any other
   reason: by itself KubeRay creates no replacement before the pod is gone.
3. If Ray's autoscaler sizes the cluster, it adds the pods. Ray ends by itself on a draining node that is idle, and then
   the pod is evicted.

Ray keeps the first deadline that it receives, and cannot cancel a drain: a node that is made schedulable again is still
drained, and its pods come back as new Ray nodes.

Apart from that, groups get the sizes in their RayService, which KubeRay applies only to new clusters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NODE_TYPE, RAY_CLUSTER, GROUP = "ray.io/node-type", "ray.io/cluster", "ray.io/group"
MADE_FOR = "ray.io/originated-from-cr-name"
INSTANCE = "app.kubernetes.io/instance"

# Taints set by whatever is about to remove the node; each waits for pods to leave, but not for long.
TERMINATION_TAINTS = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
    "aws-node-termination-handler/rebalance-recommendation",
    "node.kubernetes.io/out-of-service",
)


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node: whether it is cordoned, and the keys of its taints."""

    name: str
    is_cordoned: bool
    taints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RayPod:
    """A Ray pod. `node` and `ip` are None until Kubernetes has placed and started it."""

    name: str
    namespace: str
    uid: str
    ray_cluster: str
    group: str
    is_head: bool
    is_ending: bool
    is_ready: bool
    node: str | None
    ip: str | None


@dataclass(frozen=True, slots=True)
class RayNode:
    """A live Ray node. `pod` is the pod it runs in; `deadline_ms`, in Unix time, is set while it drains."""

    id: str
    pod: str
    deadline_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupSize:
    """Desired number of pods of a group, and the bounds for Ray's autoscaler."""

    replicas: int
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """A worker group of a Ray cluster, and those of its pods that KubeRay is told to delete."""

    name: str
    size: GroupSize
    deleted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A RayCluster's specification. `service` is the RayService that it belongs to."""

    name: str
    service: str
    is_ending: bool
    is_autoscaled: bool
    groups: tuple[WorkerGroup, ...]


@dataclass(frozen=True, slots=True)
class RayService:
    """Group sizes of a RayService. It is settled once KubeRay has no pending cluster for it."""

    name: str
    is_settled: bool
    sizes: Mapping[str, GroupSize]


@dataclass(frozen=True, slots=True)
class DrainPolicy:
    """How long a cordoned node keeps serving models that run nowhere else, and how long last requests may take."""

    patience_s: float = 900.0
    finish_s: float = 600.0
    taints: frozenset[str] = field(default=frozenset(TERMINATION_TAINTS))


@dataclass(frozen=True, slots=True)
class Drain:
    """Mark a Ray node as draining, with its deadline."""

    pod: RayPod
    ray_node: str
    deadline_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """Evict a pod that is idle."""

    pod: RayPod
    reason: str


@dataclass(frozen=True, slots=True)
class Replace:
    """Make KubeRay replace pods of a group. `deleted` is its whole list, including pods that are still ending."""

    ray_cluster: str
    group: str
    place: int
    deleted: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the size of a worker group."""

    ray_cluster: str
    group: str
    place: int
    size: GroupSize


@dataclass(frozen=True, slots=True)
class Stay:
    """Keep a head on a leaving node: only an operator knows when it may restart."""

    pod: RayPod
    reason: str


Action = Drain | Replace | Resize | Release | Stay


def parse_node(item: Mapping[str, Any]) -> KubeNode:
    """Parse a node from the API."""
    spec = item.get("spec") or {}
    taints = tuple(taint["key"] for taint in spec.get("taints") or ())
    return KubeNode(item["metadata"]["name"], bool(spec.get("unschedulable")), taints)


def parse_pod(item: Mapping[str, Any]) -> RayPod | None:
    """Parse a pod from the API; None if Ray does not, or no longer, run in it."""
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    if NODE_TYPE not in labels or RAY_CLUSTER not in labels or status.get("phase") in ("Succeeded", "Failed"):
        return None
    return RayPod(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        ray_cluster=labels[RAY_CLUSTER],
        group=labels.get(GROUP, ""),
        is_head=labels[NODE_TYPE] == "head",
        is_ending="deletionTimestamp" in metadata,
        is_ready=any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or ()),
        node=(item.get("spec") or {}).get("nodeName"),
        ip=status.get("podIP"),
    )


def parse_ray_cluster(item: Mapping[str, Any]) -> RayCluster:
    """Parse a RayCluster from the API."""
    metadata, spec = item["metadata"], item.get("spec") or {}
    groups = tuple(
        WorkerGroup(
            group["groupName"],
            _group_size(group),
            tuple((group.get("scaleStrategy") or {}).get("workersToDelete") or ()),
        )
        for group in spec.get("workerGroupSpecs") or ()
    )
    return RayCluster(
        name=metadata["name"],
        service=(metadata.get("labels") or {}).get(MADE_FOR, ""),
        is_ending="deletionTimestamp" in metadata,
        is_autoscaled=bool(spec.get("enableInTreeAutoscaling")),
        groups=groups,
    )


def parse_ray_service(item: Mapping[str, Any]) -> RayService:
    """Parse a RayService from the API."""
    metadata, status = item["metadata"], item.get("status") or {}
    groups = ((item.get("spec") or {}).get("rayClusterConfig") or {}).get("workerGroupSpecs") or ()
    is_pending = bool((status.get("pendingServiceStatus") or {}).get("rayClusterName"))
    return RayService(
        name=metadata["name"],
        is_settled=status.get("observedGeneration") == metadata.get("generation") and not is_pending,
        sizes={group["groupName"]: _group_size(group) for group in groups},
    )


def _group_size(group: Mapping[str, Any]) -> GroupSize:
    return GroupSize(*(group.get(key) or 0 for key in ("replicas", "minReplicas", "maxReplicas")))


def why_leaving(node: KubeNode, policy: DrainPolicy) -> str | None:
    """Return the reason why a node leaves, or None if it stays."""
    announced = _termination(node, policy)
    if announced is not None:
        return f"node {node.name} has the taint {announced}"
    return f"node {node.name} is cordoned" if node.is_cordoned else None


def leaving_pods(nodes: Mapping[str, KubeNode], pods: Iterable[RayPod], policy: DrainPolicy) -> list[RayPod]:
    """Return the pods on leaving nodes."""
    return [pod for pod in pods if (node := nodes.get(pod.node or "")) and why_leaving(node, policy)]


def may_leave(nodes: Mapping[str, KubeNode], pods: Sequence[RayPod], policy: DrainPolicy) -> list[RayPod]:
    """Return the pods on leaving nodes, except those that have to wait for others.

    A leaving worker accepts no new connections. If all workers of a Ray cluster are on cordoned nodes, one leaves, and
    the others stay until the next worker is ready: the Service needs at least one endpoint.
    """
    leaving = leaving_pods(nodes, pods, policy)
    served = {pod.ray_cluster for pod in pods if pod.is_ready and not (pod.is_head or pod.is_ending or pod in leaving)}
    first: dict[str, str] = {}
    for pod in sorted(leaving, key=lambda each: (not each.is_ending, each.name)):
        if not pod.is_head:
            first.setdefault(pod.ray_cluster, pod.name)

    def waits(pod: RayPod) -> bool:
        is_free_to_go = pod.is_head or pod.is_ending or not pod.is_ready or pod.ray_cluster in served
        return not (is_free_to_go or first[pod.ray_cluster] == pod.name or _termination(nodes[pod.node or ""], policy))

    return [pod for pod in leaving if not waits(pod)]


def decide(
    nodes: Mapping[str, KubeNode],
    pods: Sequence[RayPod],
    ray_nodes: Mapping[str, Sequence[RayNode]],
    now_ms: int,
    policy: DrainPolicy,
) -> list[Action]:
    """Choose the next actions.

    `ray_nodes` holds live nodes; a Ray cluster that is missing there did not answer, and its workers are left alone.
    """
    actions: list[Action] = []
    for pod in may_leave(nodes, pods, policy):
        if pod.ray_cluster not in ray_nodes or pod.node is None:
            continue
        node = nodes[pod.node]
        reason = why_leaving(node, policy) or ""
        if pod.is_head:
            actions.append(Stay(pod, reason))
            continue
        own = [ray_node for ray_node in ray_nodes[pod.ray_cluster] if ray_node.pod == pod.name]
        deadline_ms = now_ms + round(1000 * _allowance_s(node, policy))
        actions += [Drain(pod, each.id, deadline_ms, reason) for each in own if each.deadline_ms is None]
        if pod.is_ending:
            continue
        if not own:
            actions.append(Release(pod, f"{reason} and Ray has ended there"))
        elif all(each.deadline_ms is not None and each.deadline_ms <= now_ms for each in own):
            actions.append(Release(pod, f"{reason} and its deadline has passed"))
    return actions


def replacements(
    nodes: Mapping[str, KubeNode], pods: Sequence[RayPod], clusters: Iterable[RayCluster], policy: DrainPolicy
) -> list[Replace]:
    """Choose the groups that need replacement pods before their leaving or ending pods are gone.

    KubeRay deletes the pods in `workersToDelete` and no longer counts them, so it creates replacements at once. A name
    has to stay in the list until the pod is gone; otherwise it would count again, and there would be one pod too many.
    """
    chosen = []
    leaving = may_leave(nodes, pods, policy)
    for cluster in clusters:
        if cluster.is_ending or cluster.is_autoscaled:
            continue
        for place, group in enumerate(cluster.groups):
            own = [pod for pod in pods if (pod.ray_cluster, pod.group) == (cluster.name, group.name)]
            counted = [pod for pod in own if pod.name not in group.deleted]
            new = tuple(pod.name for pod in counted if pod.is_ending or pod in leaving)
            # If there are too many pods, KubeRay itself ends the surplus.
            if new and len(counted) <= group.size.replicas:
                ending = tuple(pod.name for pod in own if pod.name in group.deleted)
                chosen.append(Replace(cluster.name, group.name, place, ending + new, new))
    return chosen


def resizes(services: Iterable[RayService], clusters: Iterable[RayCluster]) -> list[Resize]:
    """Choose the groups whose size differs from their RayService.

    While a new cluster takes over, the old one keeps its size. Between the bounds, the autoscaler chooses the size.
    """
    wanted = {service.name: service.sizes for service in services if service.is_settled}
    chosen = []
    for cluster in clusters:
        sizes = {} if cluster.is_ending else wanted.get(cluster.service, {})
        for place, group in enumerate(cluster.groups):
            size = sizes.get(group.name, group.size)
            if cluster.is_autoscaled:
                size = replace(size, replicas=min(max(group.size.replicas, size.least), size.most))
            if size != group.size:
                chosen.append(Resize(cluster.name, group.name, place, size))
    return chosen


def _termination(node: KubeNode, policy: DrainPolicy) -> str | None:
    return next((key for key in node.taints if key in policy.taints), None)


def _allowance_s(node: KubeNode, policy: DrainPolicy) -> float:
    """Return the time to the deadline. Serve stops a replica `finish_s` before it, replaced or not."""
    return policy.finish_s + (0.0 if _termination(node, policy) else policy.patience_s)
