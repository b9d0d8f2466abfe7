"""Fixtures that every test may use.

`served` starts the whole platform once for the session: the real `peagle serve` in a process of its own, with two
replicas of the embedded model on a free port. It yields a `Served`:

    served.url         http://127.0.0.1:PORT (OpenAI's base address is served.url + "/v1")
    served.model       the model's name
    served.replicas    how many replicas answer
    served.log         the file that holds Ray's and vLLM's logs
    served.pid         the process of `peagle serve`

When the session ends it is stopped as a user would stop it, and no process may be left. A test that uses it is `slow`.
`PEAGLE_TEST_DEPLOYMENT` names another deployment file to serve; eager mode and two replicas are set here.
"""

import os
from collections.abc import Iterator

import pytest

from support.served import Served, up, write_deployment

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
    _keep_to_own_cores()


def _keep_to_own_cores() -> None:
    """Of several pytest processes each has its share of the cores, with all that it starts: else vLLM would pin every
    engine to the same one.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        return
    number, count = int(worker.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cores = sorted(os.sched_getaffinity(0))
    own = cores[number % len(cores) :: count]
    os.sched_setaffinity(0, own)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, own)))


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The platform, up; see the top of this file."""
    folder = tmp_path_factory.mktemp("served")
    deployment = write_deployment(
        folder, engine={"enforce_eager": True}, replicas={"min": REPLICAS, "max": REPLICAS}, resources={"cpus": 1}
    )
    with up(folder, deployment, REPLICAS) as platform:
        yield platform
