"""What a server takes away as it leaves: all of a Ray that it started, on a joined one only what it brought."""

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.errors import StartupError
from peagle.serve.launch import ray_cluster

ADDRESS = "ray://head:10001"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to a Ray that stands in for the real one, on which nothing runs."""
    seen: list[str] = []
    serve = SimpleNamespace(
        start=lambda **_: None,
        status=lambda: SimpleNamespace(applications={}),
        shutdown=lambda: seen.append("Serve stops"),
        delete=lambda name: seen.append(f"{name} is deleted"),
    )
    ray = SimpleNamespace(is_initialized=lambda: True, shutdown=lambda: seen.append("Ray stops"), serve=serve)
    api = SimpleNamespace(RunTarget=dict, run_many=lambda *_, **__: seen.append("Serve has it"))
    for name, module in (("ray", ray), ("ray.serve", serve), ("ray.serve.api", api)):
        monkeypatch.setitem(sys.modules, name, module)
    return seen


def deploy(address: str | None = ADDRESS) -> threading.Event:
    """Whether Serve may have the application, as `leave` takes it."""
    deployed = threading.Event()
    ray_cluster.deploy(None, "localhost", 8000, joined=address is not None, deployed=deployed)
    return deployed


def leave(address: str | None, deployed: threading.Event) -> None:
    ray_cluster.leave(address, lambda step: step(), deployed)


@pytest.mark.parametrize(
    ("address", "deployed", "done"),
    [
        (None, True, ["Serve has it", "Serve stops", "Ray stops"]),
        (None, False, ["Serve stops", "Ray stops"]),
        (ADDRESS, True, ["Serve has it", "peagle is deleted", "Ray stops"]),
        (ADDRESS, False, ["Ray stops"]),
    ],
)
def test_an_application_of_somebody_else_stays(
    address: str | None, deployed: bool, done: list[str], seen: list[str]
) -> None:
    leave(address, deploy(address) if deployed else threading.Event())
    assert seen == done


def test_an_application_of_somebody_else_is_not_replaced(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(applications={ray_cluster.APP_NAME: "running"})
    monkeypatch.setattr(sys.modules["ray.serve"], "status", lambda: there)
    refused(match="serves an application named peagle already")
    assert seen == ["Ray stops"]


def test_a_proxy_that_does_not_start_is_one_line(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: Any) -> None:
        raise RuntimeError("the port is in use\nTraceback of Ray's")

    monkeypatch.setattr(sys.modules["ray.serve"], "start", start)
    refused(match=r"proxy did not start \(the port is in use\)")
    assert seen == ["Ray stops"]


def refused(match: str) -> None:
    """It is not deployed on a joined cluster, and takes nothing away from it as it leaves."""
    deployed = threading.Event()
    with pytest.raises(StartupError, match=match):
        ray_cluster.deploy(None, "localhost", 8000, joined=True, deployed=deployed)
    leave(ADDRESS, deployed)
