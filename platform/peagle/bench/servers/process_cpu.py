"""What the processes of a server use of the CPU, by what each is for."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil  # type: ignore[import-untyped]

Reading = Mapping[tuple[int, float], tuple[str, float]]
"""By process number and start, which together name a process: its role and its CPU seconds so far."""

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
"""The first that is found in a command line, from the left."""


def role_of(command: Sequence[str]) -> str:
    """What a process with this command line, or the title that it has given itself, is for."""
    line = " ".join(command)
    return next((role for pattern, role in _ROLES if pattern.search(line)), OTHER)


def read_tree(root: int) -> Reading:
    """The process with this number and all below it; those that end meanwhile are left out."""
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
    """CPU seconds between two readings by role, most first; those of a process that has ended are not known."""
    seconds: dict[str, float] = defaultdict(float)
    for key, (role, total) in after.items():
        seconds[role] += total - (before[key][1] if key in before else 0.0)
    return dict(sorted(seconds.items(), key=lambda each: -each[1]))
