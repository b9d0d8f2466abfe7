"""Tests that need an NVIDIA GPU; on a machine without one they are skipped, and say why."""

import os

import pytest

from support.gpu_checks import why_no_gpu
from support.paths import REPOSITORY


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips what asks for it where there is none; engines that start later are processes of their own."""
    if (why := why_no_gpu()) is not None:
        pytest.skip(why)
    # CUDA does not work in a fork of a process that has looked for devices.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that a test starts find the package and what tests share, as whoever measures is told to have it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(REPOSITORY / name) for name in ("platform", "tests")))
