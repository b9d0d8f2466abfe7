"""Ends every descendant of this process, however deep, so that none is left behind."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

import psutil  # type: ignore[import-untyped]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Make this process the kernel's subreaper: orphaned descendants become its children (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Make the kernel send this process a stop signal when its parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end_after_parent() -> None:
    """Kill this process once its `multiprocessing` parent has ended; does nothing in other processes.

    Unlike the kernel's signal, it ignores the end of the thread that started the process.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name="parent", daemon=True).start()


def descendants() -> list[psutil.Process]:
    """Return every running process below this one; ended children are reaped."""
    return [process for process in psutil.Process().children(recursive=True) if not _reap(process)]


def _reap(process: psutil.Process) -> bool:
    """Whether the process has ended."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return False
        os.waitpid(process.pid, os.WNOHANG)
    except (psutil.NoSuchProcess, ChildProcessError):
        pass
    return True


def end_descendants(patience_s: float, poll_s: float = 0.1) -> int:
    """End all descendants and return the number killed.

    Waits `patience_s` for them to end, sends them SIGTERM, waits again, and kills the rest.
    """
    for ask in (None, signal.SIGTERM):
        if ask is not None:
            send(descendants(), ask)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not descendants():
                return 0
            time.sleep(poll_s)
    forced = descendants()
    while remaining := descendants():
        send(remaining, signal.SIGKILL)
        time.sleep(poll_s)
    return len(forced)


def send(processes: list[psutil.Process], what: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(what)
        except psutil.NoSuchProcess:
            continue
