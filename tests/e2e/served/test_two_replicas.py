"""One of two replicas is lost. The last file of its folder, because a replica is restarting afterwards."""

import time

import psutil
import pytest

from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

RECOVERY_TIMEOUT_S = 600.0


def test_a_killed_replica_is_replaced_while_requests_go_on(served: Served) -> None:
    before = {row["id"] for row in served.fleet()}
    assert len(before) == served.replicas
    replicas = [child for child in psutil.Process(served.pid).children(recursive=True) if _is_replica(child)]
    assert len(replicas) == served.replicas
    replicas[0].kill()
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    answered = 0
    while len(after := {row["id"] for row in served.fleet()} - before) == 0 or len(served.fleet()) < served.replicas:
        assert time.monotonic() < deadline, f"no replica came back; {answered} requests were answered"
        answered += served.complete()["usage"]["completion_tokens"] > 0
        time.sleep(1)
    assert len(after) == 1
    assert answered > 0


def _is_replica(process: psutil.Process) -> bool:
    try:
        return "PeagleServer" in process.cmdline()[0]
    except (psutil.NoSuchProcess, IndexError):
        return False
