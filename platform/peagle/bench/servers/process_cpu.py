"""CPU time of a server's processes by role."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil  # type: ignore[import-untyped]

Reading = Mapping[tuple[int, float], tuple[str, float]]
"""Role and CPU seconds so far of each process, by process id and start time."""

OTHER = "other"
_ROLES = tuple(
    (re.compile(pattern), role)
    for pattern, role in (
        (r"^VLLM::EngineCore", "engine core"),
        (r"^VLLM::", "engine worker"),
        (r"^ray::ServeReplica:[^:]*:Ingress([. ]|$)", "ingress"),
        (r"^ray::ServeReplica:[^:]*:Router([. ]|$)", "Router"),
        (r"^ray::ServeReplica:", "model replica"),
        (r"^ray::ProxyActor", "Serve's proxy"),
        (r"/haproxy -db ", "HAProxy"),
        (r"^ray::ServeController", "Serve's controller"),
        (r"/raylet ", "raylet"),
        (r"/gcs_server ", "GCS"),
        (r"^ray::\w*Agent|/ray/dashboard/|/ray/_private/|/ray/autoscaler/", "Ray's agents and logs"),
        (r"^ray::", "Ray's other workers"),
        (r"-m vllm\.entrypoints\.", "API server"),
        (r"-m peagle\.cli serve ", "launcher"),
    )
)
"""Patterns and roles; the leftmost match in a command line decides."""


def role_of(command: Sequence[str]) -> str:
    """Return the role of a process from its command line or process title."""
    line = " ".join(command)
    return next((role for pattern, role in _ROLES if pattern.search(line)), OTHER)


def read_tree(root: int) -> Reading:
    """Read the process `root` and all its descendants, without those that end meanwhile."""
    found = {}
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(root)
        for process in (top, *top.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied), process.oneshot():
                times = process.cpu_times()
                key = process.pid, process.create_time()
                found[key] = role_of(process.cmdline()), times.user + times.system
    return found


def used_s(before: Reading, after: Reading) -> dict[str, float]:
    """Return the CPU seconds between two readings by role, largest first, without ended processes."""
    seconds: dict[str, float] = defaultdict(float)
    for key, (role, total) in after.items():
        seconds[role] += total - (before[key][1] if key in before else 0.0)
    return dict(sorted(seconds.items(), key=lambda each: -each[1]))
