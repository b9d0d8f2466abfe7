"""Capacity check: places the head and every worker group into the nodes' free resources, largest pods first."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from peagle.cluster.preflight.facts import Amounts, Facts, NodeFacts, quantity
from peagle.cluster.preflight.outcome import Check, failed, passed, unknown, warned
from peagle.cluster.preflight.values import Values, WorkerGroup
from peagle.errors import ClusterError

PRODUCT = "nvidia.com/gpu.product"
SHOWN = 4


@dataclass(frozen=True, slots=True)
class PodKind:
    """A kind of pod: minimum and maximum number, resource requests, and placement constraints."""

    name: str
    least: int
    most: int
    asks: Amounts
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...]


def check_capacity(values: Values, facts: Facts, scale_up: bool) -> Iterator[Check]:
    """Check nodes, GPUs, and capacity for each kind of pod."""
    yield from _replicas_fit_groups(values)
    if isinstance(facts.nodes, ClusterError):
        yield unknown("nodes", facts.nodes)
        return
    free = {node.name: dict(node.free) for node in facts.nodes}
    kinds = sorted(
        pod_kinds(values), key=lambda kind: -max((kind.asks.get(name, 0) for name in _gpus(values)), default=0)
    )
    suitable = {kind.name: [node for node in facts.nodes if _admits(node, kind)] for kind in kinds}
    # Required pods of all kinds are placed before optional ones.
    least = {kind.name: _place(kind, kind.least, suitable[kind.name], free) for kind in kinds}
    for kind in kinds:
        group = values.groups.get(kind.name)
        if group is not None and group.gpus:
            yield _products(kind, group, facts.nodes)
        placed = least[kind.name]
        if placed == kind.least:
            placed += _place(kind, kind.most - kind.least, suitable[kind.name], free)
        yield _room(kind, placed, suitable[kind.name], free, scale_up)
    if values.ray.upgrade_strategy == "NewCluster" and any(node.own for node in facts.nodes):
        yield _room_beside(kinds, facts.nodes)


def pod_kinds(values: Values) -> list[PodKind]:
    """Return the head and the worker groups."""
    requests = values.head.resources.requests
    head = {"cpu": quantity(requests.cpu), "memory": quantity(requests.memory)}
    kinds = [PodKind("head", 1, 1, head, values.head.node_selector, values.head.tolerations)]
    for name, group in values.groups.items():
        asks = {"cpu": quantity(group.cpu_request or group.cpus), "memory": quantity(group.memory)}
        if group.gpus:
            asks[group.gpu_resource] = Decimal(group.gpus)
        if group.rdma_devices:
            asks[group.rdma_resource] = Decimal(group.rdma_devices)
        most = group.max_replicas if values.autoscaling.enabled else group.min_replicas
        kinds.append(PodKind(name, group.min_replicas, most, asks, group.node_selector, group.tolerations))
    return kinds


def tolerates(tolerations: Sequence[Mapping[str, Any]], taint: Mapping[str, str]) -> bool:
    """Whether `tolerations` tolerate `taint`, by Kubernetes' rule."""
    if taint.get("effect") == "PreferNoSchedule":
        return True
    for each in tolerations:
        if each.get("effect") not in (None, "", taint.get("effect")):
            continue
        if each.get("operator", "Equal") == "Exists":
            if each.get("key") in (None, "", taint["key"]):
                return True
        elif each.get("key") == taint["key"] and each.get("value", "") == taint.get("value", ""):
            return True
    return False


def gpu_nodes(group: WorkerGroup, nodes: Sequence[NodeFacts]) -> list[NodeFacts]:
    """Return the nodes that have the group's GPUs and admit its pods."""
    return [node for node in nodes if node.capacity.get(group.gpu_resource, Decimal(0)) > 0 and _admits(node, group)]


def _admits(node: NodeFacts, pods: PodKind | WorkerGroup) -> bool:
    selected = all(node.labels.get(key) == value for key, value in pods.node_selector.items())
    return node.is_ready and selected and all(tolerates(pods.tolerations, taint) for taint in node.taints)


def _place(kind: PodKind, most: int, nodes: Sequence[NodeFacts], free: dict[str, dict[str, Decimal]]) -> int:
    """Place up to `most` pods; return the number placed."""
    placed = 0
    while placed < most:
        fitting = [node.name for node in nodes if _fits(kind.asks, free[node.name])]
        if not fitting:
            break
        # The fullest node first, so that empty nodes are left for large pods.
        name = min(
            fitting, key=lambda each: [free[each].get(asked, Decimal(0)) for asked in sorted(kind.asks, reverse=True)]
        )
        for asked, amount in kind.asks.items():
            free[name][asked] -= amount
        placed += 1
    return placed


def _fits(asks: Amounts, free: Amounts) -> bool:
    return all(free.get(name, Decimal(0)) >= amount for name, amount in asks.items())


def _room(
    kind: PodKind, placed: int, suitable: Sequence[NodeFacts], free: Mapping[str, Amounts], scale_up: bool
) -> Check:
    subject, asks = f"room for {kind.name}", shown(kind.asks)
    if placed >= kind.most:
        return passed(subject, f"{placed} of {kind.most} pods fit, each with {asks}")
    if placed >= kind.least:
        fix = "Add nodes before Ray's autoscaler needs them, or lower maxReplicas."
        return warned(subject, f"{placed} of at most {kind.most} pods fit, each with {asks}", fix)
    lacking = ", ".join(_lacking(kind, suitable, free)) or "no node admits them"
    detail = f"{placed} of {kind.least} pods fit, each with {asks}: {lacking}"
    if scale_up:
        return warned(subject, detail, "Nodes have to be added for them.")
    return failed(subject, detail, "Add nodes or free some, lower minReplicas, or pass --scale-up if nodes are added.")


def _room_beside(kinds: Sequence[PodKind], nodes: Sequence[NodeFacts]) -> Check:
    """Check whether a second cluster fits next to the running one during an upgrade."""
    subject = "room for an upgrade"
    free = {node.name: {name: amount - node.own.get(name, 0) for name, amount in node.free.items()} for node in nodes}
    for kind in kinds:
        placed = _place(kind, kind.least, [node for node in nodes if _admits(node, kind)], free)
        if placed < kind.least:
            detail = f"next to the running cluster {placed} of {kind.least} pods of {kind.name} fit"
            fix = "For an upgrade that changes pods, add nodes, or set ray.upgradeStrategy: None and reinstall."
            return warned(subject, detail, fix)
    return passed(subject, "a second cluster fits next to the running one")


def _lacking(kind: PodKind, suitable: Sequence[NodeFacts], free: Mapping[str, Amounts]) -> Iterator[str]:
    for node in suitable[:SHOWN]:
        short = [name for name, amount in kind.asks.items() if free[node.name].get(name, Decimal(0)) < amount]
        if short:
            left = {name: free[node.name].get(name, Decimal(0)) for name in short}
            yield f"{node.name} has {shown(left)} left"
    if len(suitable) > SHOWN:
        yield f"and {len(suitable) - SHOWN} more nodes"


def _products(kind: PodKind, group: WorkerGroup, nodes: Sequence[NodeFacts]) -> Check:
    """Compare the product labels of GPU nodes with the accelerator type that Ray will detect."""
    subject = f"GPUs for {kind.name}"
    with_gpus = gpu_nodes(group, nodes)
    if not with_gpus:
        there = Counter(
            node.labels.get(PRODUCT, "unlabelled") for node in nodes if node.capacity.get(group.gpu_resource)
        )
        have = ", ".join(f"{product} on {count}" for product, count in there.items()) or "none on any node"
        wanted = ", ".join(f"{key}={value}" for key, value in kind.node_selector.items()) or "any label"
        fix = (
            f"Set workerGroups.{kind.name}.nodeSelector and tolerations for the existing nodes."
            if there
            else "Add GPU nodes with NVIDIA's device plugin (the GPU operator brings it)."
        )
        detail = f"no ready node has {group.gpu_resource}, {wanted} and only tolerated taints; GPUs: {have}"
        return failed(subject, detail, fix)
    products = Counter(node.labels.get(PRODUCT, "unlabelled") for node in with_gpus)
    listed = ", ".join(f"{count} x {product}" for product, count in products.items())
    foreign = [product for product in products if group.accelerator_type.upper() not in product.upper()]
    if group.accelerator_type and foreign:
        fix = f"Select nodes with one product, or correct workerGroups.{kind.name}.acceleratorType."
        return warned(subject, f"{listed}; acceleratorType is {group.accelerator_type}", fix)
    return passed(subject, f"nodes: {listed}")


def _replicas_fit_groups(values: Values) -> Iterator[Check]:
    """Check that the groups have enough GPUs of each type for the replicas' ranks."""
    asked: Counter[str] = Counter()
    for deployment in values.deployments:
        if deployment.resources.accelerator == "gpu":
            asked[deployment.resources.accelerator_type or ""] += deployment.replicas.min * deployment.devices
    for kind, count in asked.items():
        groups = [group for group in values.groups.values() if not kind or group.accelerator_type == kind]
        pods = "max_replicas" if values.autoscaling.enabled else "min_replicas"
        there = sum(group.gpus * int(getattr(group, pods)) for group in groups)
        subject = f"{kind or 'GPU'} replicas"
        if count > there:
            fix = "Raise the pods of a worker group, or lower replicas.min."
            yield failed(subject, f"models ask for {count} GPUs, worker groups have {there}", fix)
        else:
            yield passed(subject, f"models ask for {count} GPUs, worker groups have {there}")


def _gpus(values: Values) -> set[str]:
    return {group.gpu_resource for group in values.groups.values()}


def shown(amounts: Amounts) -> str:
    """Format amounts such as `8 nvidia.com/gpu, 96 cpu, 768 GiB memory`."""
    return ", ".join(
        f"{float(amount) / 2**30:.0f} GiB {name}" if name == "memory" else f"{float(amount):g} {name}"
        for name, amount in sorted(amounts.items(), reverse=True)
    )
