"""Runs the real `peagle serve` in its own process, and checks that it leaves no process behind."""

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from peagle.host.ports import free_ports
from support.paths import REPOSITORY
from support.waiting import PATIENCE_S

DEPLOYMENT = REPOSITORY / "deployments" / "embedded.yaml"
START_TIMEOUT_S = 840.0
STOP_TIMEOUT_S = 240.0
POLL_S = 0.5
PR_SET_PDEATHSIG = 1


def free_port() -> int:
    return free_ports(1)[0]


def write_deployment(folder: Path, **changes: dict[str, Any]) -> Path:
    """Write the embedded deployment into `folder` with absolute checkpoints and fields merged in by section."""
    source = Path(os.environ.get("PEAGLE_TEST_DEPLOYMENT", DEPLOYMENT))
    raw = yaml.safe_load(source.read_text(encoding="utf-8"))
    for part in ("target", "drafter"):
        if part in raw:
            raw[part]["source"] = str((source.parent / raw[part]["source"]).resolve())
    for section, fields in changes.items():
        raw[section] = {**raw.get(section, {}), **fields}
    path = folder / "deployment.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


@dataclass(slots=True)
class Served:
    """One `peagle serve` that is up, or was."""

    deployment: Path
    port: int
    state: Path
    process: subprocess.Popen[bytes]
    output: Path
    replicas: int = 1
    family: list[psutil.Process] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def model(self) -> str:
        name: str = yaml.safe_load(self.deployment.read_text(encoding="utf-8"))["name"]
        return name

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.state / "peagle" / f"serve-{self.port}.log"

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, pattern: str) -> None:
        """Wait until it has said a line that starts with `pattern`."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not re.search(rf"^\W*{pattern}", self.said(), re.MULTILINE):
            assert self.process.poll() is None, f"peagle serve ended early:\n{self.said()}"
            assert time.monotonic() < deadline, f"not there after {START_TIMEOUT_S} s:\n{self.said()}"
            time.sleep(POLL_S)

    def wait_until_ready(self) -> None:
        self.wait_for("Ready at")
        self.family = psutil.Process(self.pid).children(recursive=True)

    def find(self, name: str) -> psutil.Process:
        """A process below it whose name has `name` in it.

        Raises:
            StopIteration: There is none.
        """
        below = psutil.Process(self.pid).children(recursive=True)
        return next(process for process in below if _runs(process) and name in process.name())

    def wait_for_process(self, name: str) -> psutil.Process:
        """Wait until a process of that name is there."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with suppress(StopIteration, psutil.NoSuchProcess):
                return self.find(name)
            assert self.process.poll() is None, f"peagle serve ended early:\n{self.said()}"
            assert time.monotonic() < deadline, f"no {name} after {START_TIMEOUT_S} s:\n{self.said()}"
            time.sleep(POLL_S)

    def complete(self, prompt: str = "import os\n", tokens: int = 16) -> dict[str, Any]:
        """One greedy completion; raises on any status but 200."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=PATIENCE_S)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def fleet(self) -> list[dict[str, Any]]:
        """The rows of this model's replicas in `GET /fleet`."""
        models = httpx.get(f"{self.url}/fleet", timeout=PATIENCE_S).raise_for_status().json()["models"]
        rows: list[dict[str, Any]] = next(model["replicas"] for model in models if model["name"] == self.model)
        return rows

    def remember_family(self) -> None:
        """Note the processes below this one that have come since it was ready."""
        known = {process.pid for process in self.family}
        self.family += [child for child in psutil.Process(self.pid).children(recursive=True) if child.pid not in known]

    def stop(self, number: signal.Signals = signal.SIGTERM, whole_group: bool = False) -> int:
        """Send the signal, to the whole process group if asked; wait for the end, and return the exit status."""
        if self.process.poll() is None:
            self.remember_family()
            os.kill(-self.pid if whole_group else self.pid, number)
        return self.process.wait(STOP_TIMEOUT_S)

    def left_behind(self) -> list[str]:
        """Command lines of what still runs of all processes ever seen below it, and of all in its session."""
        # Process objects compare pid and start time, so that a reused number does not count.
        known = {process for process in self.family if _runs(process)}
        session = {process for process in psutil.process_iter() if _session(process) == self.pid and _runs(process)}
        left = []
        for process in known | session:
            with suppress(psutil.NoSuchProcess):  # it has ended since
                left.append(" ".join(process.cmdline()) or process.name())
        return left


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _stop_with_parent() -> None:
    """Have the kernel send SIGTERM when the test run ends, even where it is killed before its fixtures tear down."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def start(
    folder: Path, deployment: Path, port: int | None = None, replicas: int = 1, arguments: Sequence[str] = ()
) -> Served:
    """Start `peagle serve` on `deployment` with more `arguments`; its state and output go under `folder`."""
    port = port or free_port()
    output = folder / "output.txt"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("peagle")), "serve", str(deployment), "--port", str(port), *arguments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "XDG_STATE_HOME": str(folder)},
            start_new_session=True,
            preexec_fn=_stop_with_parent,
        )
    return Served(deployment, port, folder, process, output, replicas)


@dataclass(frozen=True, slots=True)
class Stop:
    """How a user stops it: a terminal interrupts every process of its group, others signal the one process."""

    number: signal.Signals = signal.SIGTERM
    whole_group: bool = False


@contextmanager
def up(
    folder: Path, deployment: Path, replicas: int = 1, arguments: Sequence[str] = (), stop: Stop = Stop()
) -> Iterator[Served]:
    """Yield a platform that is ready. Stop it by `stop`, and check that it ends well and leaves no process."""
    platform = start(folder, deployment, replicas=replicas, arguments=arguments)
    try:
        platform.wait_until_ready()
        yield platform
    finally:
        status = platform.stop(stop.number, stop.whole_group)
    assert status == 0, platform.said()
    assert platform.left_behind() == []
