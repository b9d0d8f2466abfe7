"""How the tests of a session are spread over processes and cores, and which warnings they tolerate.

A folder whose files share a platform is a package, and its conftest.py starts it once, for as long as the
folder's tests last. A platform is the real `peagle serve` in a process of its own on a free port. When its folder ends
it is stopped in one of the ways in which users stop it, and no process may be left. `PEAGLE_TEST_DEPLOYMENT` names
another deployment file to serve.
"""

import os
import warnings
from collections import Counter, defaultdict

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Warnings of libraries about themselves: (message, reason).
TOLERATED_WARNINGS = (
    ("Using extra keyword arguments on `Field`", "Ray Serve declares its own models so"),
    (
        r"Unclosed (context|socket) <zmq",
        "vLLM leaves its engine client's sockets to the garbage collector",
    ),
    ("`torch.jit.script_method` is deprecated", "PyTorch imports parts of its own that it has left behind"),
)


def pytest_configure(config: pytest.Config) -> None:
    for message, _ in TOLERATED_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{message}")
        warnings.filterwarnings("ignore", message)  # what is collected after the last test
    config.option.loadscopereorder = False  # the order is that of pytest_collection_modifyitems
    _keep_to_own_cores()


def _keep_to_own_cores() -> None:
    """Of several pytest processes each has its share of the cores, with all that it starts: else vLLM would pin every
    engine to the same one. A single process leaves it to `peagle serve`, which gives each replica cores of its own.
    """
    worker, count = os.environ.get("PYTEST_XDIST_WORKER"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker is None or count == 1:
        return
    number = int(worker.removeprefix("gw"))
    cores = sorted(os.sched_getaffinity(0))
    own = cores[number % len(cores) :: count]
    os.sched_setaffinity(0, own)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, own)))


# The files of a folder below share what takes long to start.
SHARING = "tests/e2e/"


def unit_of(nodeid: str) -> str:
    """What one process runs as a whole: a file, or a folder whose files share a platform."""
    file = nodeid.partition("::")[0]
    folder = file.rpartition("/")[0] + "/"
    return folder if folder.startswith(SHARING) and folder != SHARING else file


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        # Of a process that crashed xdist puts back the units that it had finished, too: its successor would get
        # nothing with them, and wait for ever.
        for unit in [unit for unit, done in self.workqueue.items() if all(done.values())]:
            del self.workqueue[unit]
        if self.workqueue:
            super()._assign_work_unit(node)
        else:
            node.shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return ByUnit(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what may take longest, or has most tests, so that no process is left with it at the end."""
    longest: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for item in items:
        unit, limit = unit_of(item.nodeid), item.get_closest_marker("timeout")
        longest[unit] = max(longest[unit], limit.args[0] if limit else 0.0)
        tests[unit] += 1
    items.sort(key=lambda item: (-longest[unit_of(item.nodeid)], -tests[unit_of(item.nodeid)]))
