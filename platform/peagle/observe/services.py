"""`peagle observe`: Prometheus, and Grafana if installed, for a running server, until Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from peagle.client.running_server import nothing_answers
from peagle.client.server_url import base_url, heeds_proxies
from peagle.errors import ConfigError, StartupError
from peagle.observe.provision import write_grafana, write_prometheus
from peagle.serve.launch.machine_checks import check_port

READY_S, STOP_S = 30.0, 10.0
# Folder into which `make prometheus` unpacks Debian's package.
UNPACKED = Path(sys.prefix) / "prometheus" / "usr" / "bin"


def run_observe(url: str, folder: Path, prometheus_port: int, grafana_port: int) -> None:
    """Start both, print their URLs, wait for Ctrl-C or SIGTERM, stop them.

    Args:
        url: URL of the server.
        folder: Output of `make dashboards`: rules (*.yaml) and dashboards (*.json).
        prometheus_port: Port of Prometheus on this machine.
        grafana_port: Port of Grafana on this machine.

    Raises:
        ConfigError: `folder` has no rules.
        StartupError: No server answers at `url`, Prometheus is not installed, or one of them does not start.
    """
    rules = sorted(folder.glob("*.yaml"))
    if not rules:
        raise ConfigError(
            "--dashboards", str(folder), "it has no rules", "Name dashboards/generated of peagle's repository."
        )
    base = base_url(url)
    try:
        answer = httpx.get(f"{base}/metrics", timeout=10.0, trust_env=heeds_proxies(base))
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise StartupError(f"{base} has no /metrics", "Name a peagle server that was started without --no-metrics.")
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise nothing_answers(base, error) from None
    check_port("127.0.0.1", prometheus_port, "--prometheus-port")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peagle-observe-")))
        config = write_prometheus(state, base, rules)
        address = f"http://127.0.0.1:{prometheus_port}"
        stack.enter_context(Child(_prometheus(config, prometheus_port), f"{address}/-/ready", state / "prometheus.log"))
        print(f"Prometheus: {address}  (alerts: {address}/alerts)", flush=True)
        if grafana := shutil.which("grafana"):
            check_port("127.0.0.1", grafana_port, "--grafana-port")
            shown = f"http://127.0.0.1:{grafana_port}"
            environment = {**write_grafana(state, address, folder), "GF_SERVER_HTTP_PORT": str(grafana_port)}
            command = [grafana, "server", "--homepath", str(_grafana_home(Path(grafana)))]
            stack.enter_context(Child(command, f"{shown}/api/health", state / "grafana.log", environment))
            print(f"Grafana: {shown}/dashboards", flush=True)
        else:
            print(
                f"Grafana is not installed; for pictures run: peagle dashboards preview --prometheus {address}",
                flush=True,
            )
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping.", flush=True)


def find_prometheus() -> str | None:
    return shutil.which("prometheus") or shutil.which("prometheus", path=UNPACKED)


def _prometheus(config: Path, port: int) -> list[str]:
    found = find_prometheus()
    if found is None:
        raise StartupError("Prometheus is not installed on this machine", "Run make prometheus, or install it.")
    return [
        found,
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]


def _grafana_home(program: Path) -> Path:
    """Return Grafana's home folder: a package's folder, or the folder of an unpacked archive."""
    packaged = Path("/usr/share/grafana")
    return packaged if packaged.is_dir() else program.resolve().parent.parent


class Child:
    """A program that runs while this is entered; entering waits until it answers at `ready`.

    Raises StartupError if it ends at once or does not answer in time.
    """

    def __init__(self, command: list[str], ready: str, log: Path, environment: dict[str, str] | None = None) -> None:
        self._command, self._ready, self._log = command, ready, log
        self._environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> "Child":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        deadline = time.monotonic() + READY_S
        try:
            while not self._answers():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise self._failure()
                time.sleep(0.2)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _answers(self) -> bool:
        try:
            return httpx.get(self._ready, timeout=2.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _failure(self) -> StartupError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        name = Path(self._command[0]).name
        return StartupError(
            f"{name} does not start: {lines[-1] if lines else 'it printed nothing'}", "Is its port taken?"
        )

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
