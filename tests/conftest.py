"""Fixtures that every test may use.

Two platforms are started at most once for the session, each the real `peagle serve` in a process of its own on a free
port: `served` has two replicas of the embedded model, `adaptive` has one that times its steps before it serves.
They yield a `Served`:

    served.url         http://127.0.0.1:PORT (OpenAI's base address is served.url + "/v1")
    served.model       the model's name
    served.replicas    how many replicas answer
    served.log         the file that holds Ray's and vLLM's logs
    served.pid         the process of `peagle serve`

When the session ends each is stopped in one of the ways in which users stop it, and no process may be left. A test that
uses one is `slow`. `PEAGLE_TEST_DEPLOYMENT` names another deployment file to serve; eager mode and replicas are set
here.

Tests of one of them lie in the folder of its name, so that pytest processes that run at once start it in one of them.
"""

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from xdist.scheduler import LoadScopeScheduling

from support.served import Served, Stop, up, write_deployment

REPLICAS = 2

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


# Folders whose files share what takes long to start.
SHARING = ("tests/e2e/", "tests/integration/engine/live/")


def unit_of(nodeid: str) -> str:
    """What one process runs as a whole: a file, or a folder whose files share an engine or a platform."""
    file = nodeid.partition("::")[0]
    folder = file.rpartition("/")[0] + "/"
    return folder if folder.startswith(SHARING) and folder != SHARING[0] else file


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]  # xdist ships no types
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


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


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The platform, up; see the top of this file."""
    folder = tmp_path_factory.mktemp("served")
    # float32: in bfloat16 a batch's size can turn a close choice, and texts are compared.
    deployment = write_deployment(
        folder,
        engine={"enforce_eager": True, "dtype": "float32"},
        replicas={"min": REPLICAS, "max": REPLICAS},
        resources={"cpus": 1},
    )
    with up(folder, deployment, REPLICAS) as platform:
        yield platform


@pytest.fixture(scope="session")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The platform with one replica whose depth adapts, from steps that were timed before."""
    folder = tmp_path_factory.mktemp("adaptive")
    speculation = {"calibration_s": 15.0}
    deployment = write_deployment(folder, engine={"enforce_eager": True}, speculation=speculation)
    with up(folder, deployment, stop=Stop(signal.SIGINT)) as platform:
        yield platform
