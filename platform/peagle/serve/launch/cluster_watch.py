"""Detects at once the end of a Ray process that the cluster cannot run without.

Ray itself continues for a minute without its GCS, and then ends the process that started it without a message.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping

from peagle.host import processes

VITAL: Mapping[str, str] = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}
"""Ray's vital processes, by process name."""


def watch_ray(lost: Callable[[str], None]) -> None:
    """Call `lost` with the name of a vital process as soon as it ends, in a separate thread (Linux).

    Only direct children of this process are watched, which Ray's processes are.
    """
    for process in processes.descendants():
        if process.ppid() == os.getpid() and (what := VITAL.get(process.name())) is not None:
            threading.Thread(target=_watch, args=(process.pid, what, lost), name=f"watch {what}", daemon=True).start()


def _watch(pid: int, what: str, lost: Callable[[str], None]) -> None:
    with contextlib.suppress(ChildProcessError):  # Ray has reaped it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    lost(what)
