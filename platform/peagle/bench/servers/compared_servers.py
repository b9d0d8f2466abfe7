"""Servers that `peagle bench overhead` compares, each with all its processes below one."""

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
from peagle.engine.start_causes import find_cause_in
from peagle.errors import ConfigError, StartupError
from peagle.host import processes
from peagle.host.ports import free_ports
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
        """Name of its server; the same with and without metrics, as equal servers differ by more than metrics cost."""
        return VLLM if self.name == VLLM else PEAGLE

    @property
    def is_counted(self) -> bool:
        """Whether it counts requests, and its `/metrics` is scraped."""
        return self.name != UNMETERED


def sides_of(names: Sequence[str]) -> list[Side]:
    """Return the sides by name. Raises ConfigError if there are none, or for an unknown name."""
    for name in names:
        if name not in SIDES:
            raise ConfigError("--sides", name, "there is no such side", f"Name some of {','.join(SIDES)}.")
    if not names:
        raise ConfigError("--sides", "", "it is empty", f"Name some of {','.join(SIDES)}.")
    return [Side(name) for name in dict.fromkeys(names)]


def side_deployment(deployment: Deployment, servers: int, *, eager: bool) -> Deployment:
    """Return the deployment of every side: one replica at a fixed K, with its share of a GPU if servers share one."""
    raw: dict[str, Any] = deployment.model_dump()
    raw["engine"] = {**raw["engine"], "enforce_eager": eager}
    raw["replicas"] = {"min": 1, "max": 1}
    raw["speculation"] |= {"adaptive": False, "inter_token_s_max": None}
    return sharing_a_gpu(parse_deployment(raw, origin=deployment.name), servers)


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return vLLM's keyword arguments as command line arguments."""
    given: list[str] = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            given.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif value is not None:
            given += [flag, value if isinstance(value, str) else json.dumps(value)]
    return given


def environment(deployment: Deployment, cores: Sequence[int]) -> dict[str, str]:
    """Return the environment of every side's processes, so that all engines use the same cores and thread counts.

    The cores are those that a replica claims on an otherwise idle machine; existing settings are kept.
    """
    given = {"VLLM_NO_USAGE_STATS": "1", **os.environ}
    if deployment.resources.accelerator == "cpu":
        count = max(1, int(deployment.resources.cpus))
        given.setdefault(CORES, ",".join(map(str, sorted(cores)[:count])))
        # Ray sets this for its workers, vLLM's server does not.
        given.setdefault(THREADS, str(count))
    return given | deployment.environment


class Server:
    """One running server."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.name, self.url, self.log = name, url, log
        self._process = process

    @classmethod
    def start(cls, name: str, deployment: Deployment, folder: Path) -> Self:
        """Start vLLM's or peagle's server, which ends with this process; its output goes to a log in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        log = folder / f"{name}.log"
        given = environment(deployment, list(os.sched_getaffinity(0)))
        if name == VLLM:
            arguments = engine_settings(deployment)
            del arguments["disable_log_stats"]  # false is the server's default, and it has no flag for it
            command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags(arguments)]
            command += ["--host", HOST, "--port", str(port)]
        else:
            file = folder / "deployment.yaml"
            file.touch(mode=0o600)  # its environment may contain a secret
            file.write_text(yaml.safe_dump(deployment.model_dump(mode="json", exclude_defaults=True)), encoding="utf-8")
            command = [sys.executable, "-m", "peagle.cli", "serve", str(file), "--port", str(port)]
            given["XDG_STATE_HOME"] = str(folder.resolve())
        with log.open("wb") as sink:
            # In its own session: Ctrl-C reaches only the measurement, which then stops its servers in order.
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
        """Wait until it answers. Raises StartupError if it ends or does not answer in time."""
        deadline = time.monotonic() + START_S
        while not self._is_well():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StartupError(f"{self.name} did not start ({self._last_word()})", f"See {self.log}.")
            await asyncio.sleep(POLL_S)

    def _is_well(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=10.0, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _last_word(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        cause = find_cause_in(self.log)
        if cause is not None:
            return f"{cause.problem}. {cause.fix}".strip()
        return lines[-1].removeprefix("peagle: ") if lines else "it printed nothing"

    def cpu(self) -> Reading:
        """Return the CPU time of its processes so far."""
        return read_tree(self._process.pid)

    def stop(self) -> None:
        """Ask it to stop, and wait; the caller ends remaining processes."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
