import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.host import cores
from peagle.host.cores import claim_cores

HOLD = """
import sys
from pathlib import Path
from peagle.host.cores import claim_cores
print(*claim_cores(int(sys.argv[2]), cores=[0, 1, 2], folder=Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def _replica(folder: Path, count: int) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_replicas_claim_different_cores_and_none_when_all_are_taken(tmp_path: Path) -> None:
    first, cores_of_first = _replica(tmp_path, 2)
    second, cores_of_second = _replica(tmp_path, 2)
    third, cores_of_third = _replica(tmp_path, 1)
    for process in (first, second, third):
        _end(process)
    assert (cores_of_first, cores_of_second, cores_of_third) == ("0 1", "2", "")


def test_a_killed_replica_gives_its_core_back(tmp_path: Path) -> None:
    first, cores_of_first = _replica(tmp_path, 3)
    _end(first)
    assert cores_of_first == "0 1 2"
    assert claim_cores(1, cores=[0], folder=tmp_path) == (0,)


def test_only_cores_that_the_process_may_use_are_claimed(tmp_path: Path) -> None:
    assert claim_cores(4, cores=[5, 3], folder=tmp_path) == (3, 5)


@pytest.mark.parametrize(("free", "bound"), [((3, 4), "3,4"), ((0, 1, 2, 3), "0,1"), ((3,), "3"), ((), "nobind")])
def test_a_replica_has_cores_of_its_own(free: tuple[int, ...], bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "cpu_quota", lambda: None)
    monkeypatch.setattr(cores, "claim_cores", lambda count: free[:count])
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    cores.bind_to_cores(2)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == bound


def test_a_container_with_a_quota_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas in several pods of a node would all pin the node's first core."""
    monkeypatch.setattr(cores, "cpu_quota", lambda: 2.0)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    cores.bind_to_cores(1)
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
