"""Which CPU cores a replica computes on, so that replicas on one machine do not fight over the same core.

vLLM's CPU worker left alone takes every core but the last, from the first core up, in every replica alike. A replica
here claims whole cores by locking one file per core; the kernel drops the locks when the process ends, however it ends.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

# Open for as long as the process lives: closing a file would give its core back.
_held: list[int] = []


def lock_folder() -> Path:
    """Where this user's core locks are, on this machine or in this container."""
    return Path(tempfile.gettempdir()) / f"peagle-cores-{os.getuid()}"


def claim_cores(count: int, cores: Iterable[int] | None = None, folder: Path | None = None) -> tuple[int, ...]:
    """Claim up to `count` cores of `cores` (all that this process may use) that no other replica holds.

    Returns:
        The claimed cores, in order; empty where none is free.
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
    """Tell vLLM's CPU worker which cores are its own; an operator's own setting wins."""
    if "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return
    cores = claim_cores(max(1, count))
    # With every core taken, threads that float share them more evenly than threads pinned to one busy core.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores)) if cores else "nobind"
