"""A small supervisor process that cleans up after its child, however the child ends.

A library may end its process abruptly, as Ray does when its GCS is lost, and no handler of the process runs then. The
supervisor uses none of these libraries.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator

from peagle.host import processes

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_STOP_S = 1.0
"""Seconds within which signals count as one stop request: terminals and service managers may send several."""
FORCED_S = 5.0
"""Seconds that a process may take after a request to stop at once."""
PATIENCE_S = 2.0
"""Seconds for remaining processes to end by themselves, and again after SIGTERM."""
_POLL_S = 0.5


def supervise(name: str) -> None:
    """Continue as the child of a supervisor, which exits with the child's status once no process is left (Linux).

    The supervisor receives stop requests and passes them on: the child has its own process group, so a terminal's
    Ctrl-C arrives once. If the supervisor is killed, the child receives a stop signal. Call it while the process has
    only one thread.

    Args:
        name: Name of the child in the message about an unexpected end.
    """
    if sys.platform != "linux":
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGCHLD})
    processes.adopt_orphans()
    supervisor = os.getpid()
    if child := os.fork():
        _supervise(name, child)
    os.setpgid(0, 0)
    processes.end_with_parent()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if os.getppid() != supervisor:  # it was killed before the kernel's parent death signal was set
        os.kill(os.getpid(), signal.SIGTERM)


def _supervise(name: str, child: int) -> None:
    """Pass stop requests on until `child` has ended; then end remaining processes and exit with its status."""
    asked, status = _wait(child)
    processes.end_descendants(PATIENCE_S)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and not asked:
        how = signal.Signals(-code).name
        print(f"peagle: {name} was ended by {how}; its processes were stopped.", file=sys.stderr, flush=True)
    # Without exit handlers, which belong to the child.
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: int) -> tuple[bool, int]:
    """Wait for the child to end; return whether a stop was requested, and its status."""
    asked_at_s, requests, force_at_s = -SAME_STOP_S, 0, None
    while True:
        received = signal.sigtimedwait({*STOP_SIGNALS, signal.SIGCHLD}, _POLL_S)
        for pid, status in _ended():
            if pid == child:
                return requests > 0, status
        now_s = time.monotonic()
        if received is not None and received.si_signo in STOP_SIGNALS:
            if now_s - asked_at_s >= SAME_STOP_S:
                requests += 1
                os.kill(child, received.si_signo)
            asked_at_s = now_s
        if requests > 1:
            force_at_s = force_at_s or now_s + FORCED_S
            if now_s >= force_at_s:
                os.kill(child, signal.SIGKILL)


def _ended() -> Iterator[tuple[int, int]]:
    """Reap ended processes: the child and its orphans."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status
