"""What vLLM calls in a worker process."""

import pytest

from peagle.engine import worker
from peagle.engine.arguments import WORKER_EXTENSION
from peagle.upstream import Process


def test_the_patches_are_installed_before_each_worker_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[object] = []
    monkeypatch.setattr(worker, "install_patches", happened.append)

    class Base:
        pass

    class Worker(Base):
        def __init__(self, rank: int) -> None:
            happened.append(rank)

    # As vLLM's `WorkerWrapperBase.init_worker` does.
    Worker.__bases__ = (*Worker.__bases__, worker.WorkerExtension)
    assert happened == []
    for rank in (3, 4):
        assert isinstance(Worker(rank), Base)
    assert happened == [Process.WORKER, 3, Process.WORKER, 4]


def test_vllms_workers_do_not_override_the_extensions_constructor() -> None:
    base = pytest.importorskip("vllm.v1.worker.worker_base")
    assert base.WorkerBase.__new__ is object.__new__
    assert f"{worker.__name__}.{worker.WorkerExtension.__name__}" == WORKER_EXTENSION
    clashes = [name for name in vars(worker.WorkerExtension) if not name.startswith("__")]
    assert clashes == []
