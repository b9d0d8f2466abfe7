"""CPU cores of a replica, so that replicas on one machine do not compete for the same core.

By default, vLLM's CPU worker uses every core except the last, the same ones in every replica. Here, a replica claims
whole cores by locking one file per core; the kernel releases the locks when the process ends, however it ends.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from peagle.host.machine_limits import cpu_quota

# Open for the life of the process: closing a file would release its core.
_held: list[int] = []


def lock_folder() -> Path:
    """Return the folder of this user's core locks on this machine or in this container."""
    return Path(tempfile.gettempdir()) / f"peagle-cores-{os.getuid()}"


def claim_cores(count: int, cores: Iterable[int] | None = None, folder: Path | None = None) -> tuple[int, ...]:
    """Claim up to `count` of `cores` (default: all usable cores) that no other replica holds.

    Returns:
        The claimed cores, in order; empty if none is free.
    """
    folder = folder or lock_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    claimed: list[int] = []
    for core in sorted(os.sched_getaffinity(0) if cores is None else cores):
        if len(claimed) == count:
            break
        handle = os.open(folder / f"core-{core}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        _held.append(handle)
        claimed.append(core)
    return tuple(claimed)


def bind_to_cores(count: int) -> None:
    """Bind vLLM's CPU worker to claimed cores; an operator's own setting takes precedence."""
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return
    # A container with a quota shares its cores with containers whose locks it cannot see, such as a node's other pods.
    cores = claim_cores(max(1, count)) if cpu_quota() is None else ()
    # If every core is taken, unpinned threads share cores more evenly than threads pinned to one busy core.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores)) if cores else "nobind"
