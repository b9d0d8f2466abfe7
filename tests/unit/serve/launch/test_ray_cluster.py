"""What a server stops when it leaves: all of a Ray that it started, only its application on a joined one."""

import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.errors import StartupError
from peagle.serve.launch import ray_cluster

ADDRESS = "ray://head:10001"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls to a fake Ray, without running applications."""
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
    """Whether Serve may have the application, for `leave`."""
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
    refused(match="already serves an application named peagle")
    assert seen == ["Ray stops"]


def test_a_proxy_that_does_not_start_is_one_line(seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: Any) -> None:
        raise RuntimeError("the port is in use\nTraceback of Ray's")

    monkeypatch.setattr(sys.modules["ray.serve"], "start", start)
    refused(match=r"proxy did not start \(the port is in use\)")
    assert seen == ["Ray stops"]


def refused(match: str) -> None:
    """It is not deployed on a joined cluster, and its end removes nothing from the cluster."""
    deployed = threading.Event()
    with pytest.raises(StartupError, match=match):
        ray_cluster.deploy(None, "localhost", 8000, joined=True, deployed=deployed)
    leave(ADDRESS, deployed)


def test_a_cluster_of_ones_own_listens_on_loopback_and_asks_for_a_token_that_only_its_user_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "environ", {})
    ray_cluster.keep_private(tmp_path)
    (token,) = tmp_path.iterdir()
    assert os.environ == {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)
    }  # fmt: skip
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64


@pytest.mark.parametrize(
    "theirs",
    [
        {"RAY_AUTH_MODE": "disabled", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/x", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
    ],
)
def test_what_the_operator_has_set_stays(
    theirs: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "environ", dict(theirs))
    ray_cluster.keep_private(tmp_path)
    assert os.environ == theirs
    assert not list(tmp_path.iterdir())
