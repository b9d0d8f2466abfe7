"""Tests that need an NVIDIA GPU; without one they are skipped with a reason."""

import os

import pytest

from support.engines.gpu_checks import why_no_gpu
from support.paths import REPOSITORY


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skip the test if there is no GPU; make engines start in separate processes."""
    if (why := why_no_gpu()) is not None:
        pytest.skip(why)
    # CUDA does not work in a fork of a process that has enumerated devices.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes started by a test import the package and the tests' shared modules, as documented for measuring."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(REPOSITORY / name) for name in ("platform", "tests")))
