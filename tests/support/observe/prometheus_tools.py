"""Prometheus' own programs, if installed."""

import shutil

import pytest

from support.paths import REPOSITORY

PROGRAMS = REPOSITORY / ".venv" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """The path of `promtool` or `prometheus`; skips the test where there is none."""
    found = shutil.which(name) or shutil.which(name, path=PROGRAMS)
    if found is None:
        pytest.skip(f"no {name} here: `make prometheus` unpacks Debian's, or install Prometheus")
    return found
