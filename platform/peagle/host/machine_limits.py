"""What this machine, or the container that this runs in, leaves its processes: memory and cores."""

import os
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def available_memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Memory that new processes may take: what the kernel says is available, within the container's limit."""
    available = _memory(proc, "MemAvailable")
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        used -= _inactive_cache_bytes((cgroup / "memory.stat").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return available
    return min(available, max(0, limit - used))


def memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """All memory of the machine, or the container's limit where that is less."""
    total = _memory(proc, "MemTotal")
    try:
        return min(total, int((cgroup / "memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total


def core_count(cgroup: Path = CGROUP) -> float:
    """Cores that this process may use, or the container's quota where that is less: it may be a fraction."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota_us, period_us = map(int, (cgroup / "cpu.max").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return cores
    return min(cores, round(quota_us / period_us, 2))


def _memory(proc: Path, name: str) -> int:
    rows = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith(f"{name}:"))


def _inactive_cache_bytes(stat: str) -> int:
    """File pages that the kernel gives up first: used, as a container counts, but free for whoever asks (as the kubelet
    works out a working set)."""
    return sum(int(size) for name, size in (line.split() for line in stat.splitlines()) if name == "inactive_file")
