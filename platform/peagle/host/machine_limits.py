"""Memory and cores available to processes on this machine or in this container."""

import os
from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def available_memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the memory available to new processes, within the container's limit."""
    available = _memory(proc, "MemAvailable")
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        used -= _inactive_cache_bytes((cgroup / "memory.stat").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return available
    return min(available, max(0, limit - used))


def memory_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return the machine's total memory, or the container's limit if lower."""
    total = _memory(proc, "MemTotal")
    try:
        return min(total, int((cgroup / "memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return total


def core_count(cgroup: Path = CGROUP) -> float:
    """Return the cores that this process may use, or the container's quota if lower; may be fractional."""
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota(cgroup)
    return cores if quota is None else min(cores, round(quota, 2))


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Return the container's CPU quota in cores, of control groups version 2 or 1, or None without a quota."""
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            text = " ".join((cgroup / file).read_text(encoding="ascii") for file in files)
            quota_us, period_us = map(int, text.split())
        except (OSError, ValueError):
            continue
        return quota_us / period_us if quota_us > 0 else None
    return None


def _memory(proc: Path, name: str) -> int:
    rows = (proc / "meminfo").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith(f"{name}:"))


def _inactive_cache_bytes(stat: str) -> int:
    """Return the inactive file pages: counted as used by a container, but reclaimable.

    The kubelet subtracts them from a working set in the same way.
    """
    return sum(int(size) for name, size in (line.split() for line in stat.splitlines()) if name == "inactive_file")
