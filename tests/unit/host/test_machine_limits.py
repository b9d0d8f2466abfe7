"""Memory and cores within a container's limits."""

import os
from pathlib import Path

import pytest

from peagle.host.machine_limits import available_memory_bytes, core_count, cpu_quota, memory_bytes


def test_a_containers_limit_bounds_the_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 50 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1024\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 50 * 1024
    (tmp_path / "memory.max").write_text("4096\n")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 0\nactive_file 624\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 3072
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 600\nactive_file 24\n")
    assert available_memory_bytes(tmp_path, tmp_path) == 3672, "what is only cached gives way"


def test_all_memory_is_the_machines_or_the_limit(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    assert memory_bytes(tmp_path, tmp_path) == 100 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_bytes(tmp_path, tmp_path) == 100 * 1024
    (tmp_path / "memory.max").write_text("4096\n")
    assert memory_bytes(tmp_path, tmp_path) == 4096


@pytest.mark.parametrize(
    ("quota", "cores"), [("max 100000", 8), ("150000 100000", 1.5), ("6400000 100000", 8), ("", 8)], ids=str
)
def test_a_quota_bounds_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: float) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text(quota)
    assert core_count(tmp_path) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("50000", 0.5)])
def test_a_quota_of_version_1_is_read_too(tmp_path: Path, quota: str, cores: float | None) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path) == cores
