"""A small process above a large one, so that however the large one ends, nothing that it had started stays.

A library may end its process without a word, as Ray does where its GCS is gone, and no handler of the process itself
runs then. The process above has none of these libraries.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator

from peagle.host import processes

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_STOP_S = 1.0
"""Signals that come within this time are one request to stop: terminals and service managers may send both kinds."""
FORCED_S = 5.0
"""How long a process that is told to stop at once may take to do so."""
PATIENCE_S = 2.0
"""How long what is left gets to end by itself, and again once it is asked to."""
_POLL_S = 0.5


def supervise(name: str) -> None:
    """Go on as the child of a supervisor, which ends with this process's status once nothing below is left (Linux).

    Requests to stop are for the supervisor, which passes them on: the child has a process group of its own, so a
    terminal's Ctrl-C comes once. A supervisor that is killed has the child asked to stop. Call it while the process
    has one thread.

    Args:
        name: What the supervisor calls the child where it tells of an end that nobody asked for.
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
    if os.getppid() != supervisor:  # it was killed before the kernel could be asked to tell
        os.kill(os.getpid(), signal.SIGTERM)


def _supervise(name: str, child: int) -> None:
    """Pass requests to stop on until `child` has ended; then end what is left, and end with its status."""
    asked, status = _wait(child)
    processes.end_descendants(PATIENCE_S)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and not asked:
        how = signal.Signals(-code).name
        print(f"peagle: {name} was ended by {how}, and all that it had started with it.", file=sys.stderr, flush=True)
    # At once: what runs at an exit is the child's.
    os._exit(code if code >= 0 else 128 - code)


def _wait(child: int) -> tuple[bool, int]:
    """Wait for the child's end; return whether it was asked to stop, and its status."""
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
    """Reap what has ended: the child, and orphans that it left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status
