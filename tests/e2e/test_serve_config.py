"""The Serve configuration that the chart renders for CPU, applied to a real Ray Serve as KubeRay does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml

from peagle.serve.launch.ray_cluster import ENVIRONMENT
from support.kubernetes.rendered_chart import CHART, REPOSITORY, ready_values, render
from support.platforms.served import free_port

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

IN_IMAGE = "/srv/peagle/deployments/"
START_TIMEOUT_S, READY_TIMEOUT_S = 120.0, 420.0


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray head in separate processes, started with `ray start` as in a pod; yields its dashboard's address."""
    folder = tmp_path_factory.mktemp("head")
    port, dashboard = free_port(), free_port()
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=4"]
    ray += [f"--port={port}", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={free_port()}"]
    ray += [
        "--dashboard-host=127.0.0.1",
        "--object-store-memory=134217728",
        "--ray-client-server-port",
        str(free_port()),
    ]
    environment = {**os.environ, **ENVIRONMENT, "RAY_AUTH_MODE": "disabled"}
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(
            ray, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True
        )
    url = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(f"{url}/api/serve/applications/"):
            assert process.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() < deadline, (folder / "head.log").read_text()
            time.sleep(1)
        yield url
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal.SIGTERM)
        psutil.wait_procs([psutil.Process(process.pid)] if process.poll() is None else [], timeout=30)
        process.kill()  # Ray's head goes on until its application has ended
        process.wait()
        for left in psutil.wait_procs(family, timeout=10)[1]:
            left.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def test_the_cpu_values_serve_the_embedded_model(head: str) -> None:
    text = render(ready_values("embedded-cpu")).service["serveConfigV2"]
    config = yaml.safe_load(text.replace(IN_IMAGE, f"{REPOSITORY}/deployments/"))
    port = free_port()
    # A free port of this machine; in a pod it is the chart's.
    config["http_options"] |= {"host": "127.0.0.1", "port": port}
    answer = httpx.put(f"{head}/api/serve/applications/", json=config, timeout=60)
    assert answer.status_code == 200, answer.text
    status: dict[str, object] = {}
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not _answers(f"http://127.0.0.1:{port}/health"):
        status = httpx.get(f"{head}/api/serve/applications/", timeout=30).json()["applications"].get("peagle", {})
        assert status.get("status") not in ("DEPLOY_FAILED", "UNHEALTHY"), status
        assert time.monotonic() < deadline, status
        time.sleep(2)
    done = subprocess.run(
        [sys.executable, str(CHART / "files" / "ask.py"), f"http://127.0.0.1:{port}", "60", "r", "n"],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "peagle-embedded: " in done.stdout
