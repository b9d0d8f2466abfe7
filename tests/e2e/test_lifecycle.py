"""Starts, stops and accidents of the real `peagle serve`.

That an orderly stop leaves the machine as it was is checked where each shared platform ends: by SIGTERM (`served`), by
SIGINT to the launcher (`adaptive`) and by a terminal's SIGINT to its whole group (`keyed`).
"""

import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.serve.launch.machine_checks import visible_gpus
from support.platforms.served import START_TIMEOUT_S, Served, free_port, start, write_deployment

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]


def _deployment(folder: Path, replicas: int = 1) -> Path:
    return write_deployment(
        folder, engine={"enforce_eager": True}, replicas={"min": replicas, "max": replicas}, resources={"cpus": 1}
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[Served]]:
    """Platforms that a test started; running ones are stopped at its end."""
    started: list[Served] = []
    yield started
    for platform in started:
        if platform.process.poll() is None:
            platform.process.kill()
        for process in platform.family:
            if process.is_running():
                process.kill()


def _all_gone(platform: Served, timeout_s: float) -> list[str]:
    """Return the platform's processes that remain after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := platform.left_behind()) and time.monotonic() < deadline:
        time.sleep(1)
    return left


def test_a_stop_while_it_still_starts_is_clean(tmp_path: Path, running: list[Served]) -> None:
    platform = start(tmp_path, _deployment(tmp_path))
    running.append(platform)
    platform.wait_for(r"Load ")
    time.sleep(5)
    assert platform.stop(signal.SIGINT) == 0, platform.said()
    assert platform.left_behind() == []


def test_a_killed_launcher_takes_its_cluster_with_it(tmp_path: Path, running: list[Served]) -> None:
    platform = start(tmp_path, _deployment(tmp_path))
    running.append(platform)
    platform.wait_until_ready()
    platform.process.kill()
    platform.process.wait()
    # The supervised process is asked to stop, and shuts the cluster down in order.
    assert _all_gone(platform, timeout_s=60) == []


@pytest.mark.parametrize(("process", "told"), [("gcs_server", "Ray's GCS has ended"), ("raylet", "Ray's raylet")])
def test_a_lost_process_of_ray_ends_everything_and_is_told(
    tmp_path: Path, running: list[Served], process: str, told: str
) -> None:
    platform = start(tmp_path, _deployment(tmp_path))
    running.append(platform)
    platform.wait_for_process("EngineCore")
    platform.remember_family()
    platform.find(process).kill()
    assert platform.process.wait(30) == 1, platform.said()
    assert told in platform.said()
    assert platform.left_behind() == []


def _refused(deployment: Path, port: int, folder: Path) -> str:
    """Return the message of `peagle serve` when it refuses to start, soon and without a traceback."""
    platform = start(folder, deployment, port=port)
    status = platform.process.wait(30)
    said = platform.said()
    assert status != 0
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 3, said
    return said


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in _refused(_deployment(tmp_path), port, tmp_path)


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    deployment = write_deployment(tmp_path, target={"source": str(tmp_path / "absent")})
    assert str(tmp_path / "absent") in _refused(deployment, free_port(), tmp_path)


def test_more_memory_than_there_is_is_named(tmp_path: Path) -> None:
    deployment = write_deployment(tmp_path, engine={"kv_cache_memory_bytes": 1 << 50})
    assert "GiB of memory" in _refused(deployment, free_port(), tmp_path)


@pytest.mark.skipif(visible_gpus() > 0, reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    deployment = write_deployment(tmp_path, resources={"accelerator": "gpu"})
    assert "GPU" in _refused(deployment, free_port(), tmp_path)


def test_what_the_engine_refuses_is_said_in_one_line(tmp_path: Path, running: list[Served]) -> None:
    deployment = write_deployment(tmp_path, engine={"enforce_eager": True, "quantization": "gptq"})
    platform = start(tmp_path, deployment)
    running.append(platform)
    assert platform.process.wait(START_TIMEOUT_S) != 0
    said = platform.said()
    assert "Traceback" not in said
    assert "gptq" in said
    assert str(platform.log) in said
