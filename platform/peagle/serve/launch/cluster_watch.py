"""Notices at once when a process of Ray's that nothing can go on without has ended.

Ray itself goes on for a minute without its GCS, and then ends the process that started it without a word.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Mapping

from peagle.host import processes

VITAL: Mapping[str, str] = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}
"""By the names of their processes."""


def watch_ray(lost: Callable[[str], None]) -> None:
    """Call `lost` with what has ended, in a thread of its own, as soon as it has (Linux).

    Of all below this process only its own children are watched: Ray's are.
    """
    for process in processes.descendants():
        if process.ppid() == os.getpid() and (what := VITAL.get(process.name())) is not None:
            threading.Thread(target=_watch, args=(process.pid, what, lost), name=f"watch {what}", daemon=True).start()


def _watch(pid: int, what: str, lost: Callable[[str], None]) -> None:
    with contextlib.suppress(ChildProcessError):  # Ray has reaped it
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    lost(what)
