"""Tests that need an NVIDIA GPU; on a machine without one they are skipped, and say why."""

import pytest

from support.gpu_checks import why_no_gpu


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips what asks for it where there is none."""
    if (why := why_no_gpu()) is not None:
        pytest.skip(why)
