"""The servers that `peagle bench overhead` holds against each other, each with all its processes below one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from peagle.bench.engines.engine_plan import sharing_a_gpu
from peagle.bench.servers.process_cpu import Reading, read_tree
from peagle.config import Deployment, parse_deployment
from peagle.errors import ConfigError, StartupError
from peagle.host import processes
from peagle.host.ports import free_ports
from peagle.serve.launch.diagnosis import root_cause_in
from peagle.serve.launch.serving_arguments import engine_settings

VLLM, PEAGLE, UNMETERED = "vllm", "peagle", "peagle-unmetered"
SIDES = (VLLM, PEAGLE, UNMETERED)
HOST = "127.0.0.1"
START_S, STOP_S, POLL_S = 900.0, 90.0, 0.5
CORES, THREADS = "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Side:
    """One way to serve the model; a row of the result."""

    name: str

    @property
    def server(self) -> str:
        """Whose server it is; with metrics and without the same, since like ones differ by more than those cost."""
        return VLLM if self.name == VLLM else PEAGLE

    @property
    def is_counted(self) -> bool:
        """Whether it counts, and its `/metrics` is scraped."""
        return self.name != UNMETERED


def sides_of(names: Sequence[str]) -> list[Side]:
    """Raises ConfigError where there is none, or no such side."""
    for name in names:
        if name not in SIDES:
            raise ConfigError("--sides", name, "there is no such side", f"Name some of {','.join(SIDES)}.")
    if not names:
        raise ConfigError("--sides", "", "it names none", f"Name some of {','.join(SIDES)}.")
    return [Side(name) for name in dict.fromkeys(names)]


def side_deployment(deployment: Deployment, servers: int, *, eager: bool) -> Deployment:
    """What every side serves: one replica, at one K throughout, with its part of a GPU where servers share one."""
    raw: dict[str, Any] = deployment.model_dump()
    raw["engine"] = {**raw["engine"], "enforce_eager": eager}
    raw["replicas"] = {"min": 1, "max": 1}
    raw["speculation"] |= {"adaptive": False, "inter_token_s_max": None}
    return sharing_a_gpu(parse_deployment(raw, origin=deployment.name), servers)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """vLLM's keyword arguments as those of its command line."""
    given: list[str] = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            given.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            given += [flag, value if isinstance(value, str) else json.dumps(value)]
    return given


def environment(deployment: Deployment, cores: Sequence[int]) -> dict[str, str]:
    """What every side's processes find in theirs, so that every engine computes on the same cores in as many threads.

    They are those that a replica claims on a machine without others; who has set them keeps them.
    """
    given = {"VLLM_NO_USAGE_STATS": "1", **os.environ}
    if deployment.resources.accelerator == "cpu":
        count = max(1, int(deployment.resources.cpus))
        given.setdefault(CORES, ",".join(map(str, sorted(cores)[:count])))
        # Ray sets this for its workers, vLLM's server for nobody.
        given.setdefault(THREADS, str(count))
    return given | deployment.environment


class Server:
    """One running server."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.name, self.url, self.log = name, url, log
        self._process = process

    @classmethod
    def start(cls, name: str, deployment: Deployment, folder: Path) -> Self:
        """Start vLLM's or peagle's; it stays with this process, and what it says goes to a log in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        log = folder / f"{name}.log"
        given = environment(deployment, list(os.sched_getaffinity(0)))
        if name == VLLM:
            arguments = engine_settings(deployment)
            del arguments["disable_log_stats"]  # off is how the server starts, and it has no flag that says so
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags(arguments)]
            command += ["--host", HOST, "--port", str(port)]
        else:
            file = folder / "deployment.yaml"
            file.touch(mode=0o600)  # its environment may hold a secret
            file.write_text(yaml.safe_dump(deployment.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
            command = [sys.executable, "-m", "peagle.cli", "serve", str(file), "--port", str(port)]
            given["XDG_STATE_HOME"] = str(folder.resolve())
        with log.open("wb") as sink:
            # In a session of its own, Ctrl-C reaches the measurement alone, which then ends its servers in order.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=given,
                start_new_session=True,
                preexec_fn=processes.end_with_parent,
            )
        return cls(name, process, f"http://{HOST}:{port}", log)

    async def wait_until_ready(self) -> None:
        """Raises StartupError where it ends, or does not answer in time."""
        deadline = time.monotonic() + START_S
        while not self._is_well():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StartupError(f"{self.name} did not start ({self._last_word()})", f"{self.log} says more.")
            await asyncio.sleep(POLL_S)

    def _is_well(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=10.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _last_word(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return root_cause_in(self.log) or (lines[-1].removeprefix("peagle: ") if lines else "it says nothing")

    def cpu(self) -> Reading:
        """What its processes have used so far."""
        return read_tree(self._process.pid)

    def stop(self) -> None:
        """Ask it to end, and wait; whatever is left then is for the caller to end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
