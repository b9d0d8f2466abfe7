"""However a supervised process ends, none of its processes stays, and the status tells how it ended."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are supervised on Linux")

# A server whose engine ignores SIGTERM, and which runs `{stop}` at a stop; its supervisor has little patience.
SERVER = textwrap.dedent(
    """
    import os, signal, subprocess, sys, time
    from peagle.host import supervisor
    supervisor.PATIENCE_S, supervisor.FORCED_S = 0.3, 1.0
    supervisor.supervise("the server")
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    engine = ignore + "; print('up', flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", engine], stdout=subprocess.PIPE)
    child.stdout.readline()
    requests = 0
    def stop(number, frame):
        global requests
        requests += 1
        print("asked", signal.Signals(number).name, flush=True)
        {stop}
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print("server", os.getpid(), child.pid, flush=True)
    while True:
        time.sleep(0.05)
    """
)


def ends(process: psutil.Process, timeout_s: float = 10.0) -> bool:
    """Whether it ends in time; its reaper may be slow."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


class Running:
    """The supervisor and its supervised process."""

    def __init__(self, stop: str) -> None:
        self.supervisor = subprocess.Popen(
            [sys.executable, "-c", SERVER.replace("{stop}", stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.supervisor.stdout is not None
        _, server, engine = self.supervisor.stdout.readline().split()
        self.server, self.engine = psutil.Process(int(server)), psutil.Process(int(engine))

    def asked(self) -> str:
        assert self.supervisor.stdout is not None
        return self.supervisor.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Return its status and last output; no process is left."""
        _, said = self.supervisor.communicate(timeout=30)
        assert ends(self.server)
        assert ends(self.engine)
        return self.supervisor.returncode, said


@pytest.fixture
def start() -> Iterator[type[Running]]:
    started: list[Running] = []

    class Kept(Running):
        def __init__(self, stop: str = "sys.exit(0)") -> None:
            super().__init__(stop)
            started.append(self)

    yield Kept
    for each in started:
        each.supervisor.kill()
        each.supervisor.communicate()
        for process in (each.server, each.engine):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_a_process_that_is_killed_takes_what_it_started_with_it_and_is_told_of(start: type[Running]) -> None:
    running = start()
    running.server.kill()
    status, said = running.end()
    assert status == 128 + signal.SIGKILL
    assert "the server was ended by SIGKILL" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_request_to_stop_comes_once_however_it_is_made(
    start: type[Running], number: signal.Signals, whole_group: bool
) -> None:
    running = start("sys.exit(3)")
    os.kill(-running.supervisor.pid if whole_group else running.supervisor.pid, number)
    assert running.asked() == f"asked {number.name}"
    assert running.end() == (3, "")


def test_two_kinds_of_request_at_once_are_one(start: type[Running]) -> None:
    running = start("time.sleep(1.5); sys.exit(requests)")
    os.kill(running.supervisor.pid, signal.SIGINT)
    os.kill(running.supervisor.pid, signal.SIGTERM)
    assert running.end() == (1, "")


def test_one_that_ignores_two_requests_is_killed(start: type[Running]) -> None:
    running = start("pass")
    for _ in range(2):
        os.kill(running.supervisor.pid, signal.SIGTERM)
        assert running.asked() == "asked SIGTERM"
        time.sleep(1.2)
    assert running.end() == (128 + signal.SIGKILL, "")


def test_a_supervisor_that_is_killed_has_the_process_asked_to_stop(start: type[Running]) -> None:
    running = start("child.kill(); sys.exit(0)")
    running.supervisor.kill()
    assert running.asked() == "asked SIGTERM"
    assert ends(running.server)
    assert ends(running.engine)


ORPHAN = textwrap.dedent(
    """
    import multiprocessing, os, sys, time
    from peagle.host.processes import end_after_parent
    def work():
        end_after_parent()
        print(os.getpid(), flush=True)
        time.sleep(60)
    if __name__ == "__main__":
        end_after_parent()  # nothing: nobody started it by multiprocessing
        multiprocessing.get_context("fork").Process(target=work).start()
        time.sleep(60)
    """
)


def test_a_process_whose_parent_was_killed_ends() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    assert ends(child)
    parent.stdout.close()
