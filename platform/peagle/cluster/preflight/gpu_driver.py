"""Driver check: compares the version of NVIDIA's driver on GPU nodes with the minimum of the GPU image."""

from collections import Counter
from collections.abc import Iterator, Sequence

from peagle.cluster.preflight.capacity import SHOWN, gpu_nodes
from peagle.cluster.preflight.facts import Facts, NodeFacts
from peagle.cluster.preflight.outcome import Check, failed, passed, warned
from peagle.cluster.preflight.values import Values
from peagle.errors import ClusterError

DRIVER_MIN = 580
"""Oldest major version of the driver that runs CUDA 13, which the GPU image contains."""

# Labels of NVIDIA's GPU feature discovery. The first is newer; old releases set only the second.
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major")
NEED = f"the GPU image's CUDA 13 needs {DRIVER_MIN} or newer"


def check_drivers(values: Values, facts: Facts) -> Iterator[Check]:
    """Check the driver on the nodes that each worker group with GPUs could use."""
    if isinstance(facts.nodes, ClusterError):
        return
    for name, group in values.groups.items():
        if group.gpus and (nodes := gpu_nodes(group, facts.nodes)):
            yield _driver(name, nodes)


def _driver(group: str, nodes: Sequence[NodeFacts]) -> Check:
    subject = f"NVIDIA driver for {group}"
    versions = {node.name: _major(node) for node in nodes}
    old = [f"{name} has {major}" for name, major in versions.items() if major and major < DRIVER_MIN]
    unlabelled = [name for name, major in versions.items() if not major]
    if old:
        fix = f"Upgrade NVIDIA's driver there, or select other nodes with workerGroups.{group}.nodeSelector."
        return failed(subject, f"{NEED}: {_listed(old)}", fix)
    if unlabelled:
        fix = (
            "Run nvidia-smi on these nodes: it prints the driver's version. NVIDIA's GPU feature discovery"
            " (the GPU operator brings it) labels nodes with it."
        )
        return warned(subject, f"{NEED}; no label tells the version on {_listed(unlabelled)}", fix)
    counts = sorted(Counter(versions.values()).items())
    return passed(subject, "nodes: " + ", ".join(f"{count} x {major}" for major, count in counts))


def _major(node: NodeFacts) -> int:
    """Return the major version of a node's driver, or 0 if no label tells it."""
    majors = (node.labels.get(label, "") for label in DRIVER_LABELS)
    return next((int(major) for major in majors if major.isdecimal()), 0)


def _listed(items: Sequence[str]) -> str:
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f", and {more} more node{'s' if more > 1 else ''}" if more > 0 else "")
