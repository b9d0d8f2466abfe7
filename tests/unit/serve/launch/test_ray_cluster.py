"""What a server takes away as it leaves: all of a Ray that it started, on a joined one only what it brought."""

import sys
import threading
from types import SimpleNamespace

import pytest

from peagle.errors import StartupError
from peagle.serve.launch import ray_cluster

ADDRESS = "ray://head:10001"


@pytest.mark.parametrize(
    ("address", "deployed", "done"),
    [
        (None, True, ["Serve stops", "Ray stops"]),
        (None, False, ["Serve stops", "Ray stops"]),
        (ADDRESS, True, ["peagle is deleted", "Ray stops"]),
        (ADDRESS, False, ["Ray stops"]),
    ],
)
def test_an_application_of_somebody_else_stays(
    address: str | None, deployed: bool, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    serve = SimpleNamespace(
        start=lambda **_: None,
        status=lambda: SimpleNamespace(applications={}),
        shutdown=lambda: seen.append("Serve stops"),
        delete=lambda name: seen.append(f"{name} is deleted"),
    )
    ray = SimpleNamespace(is_initialized=lambda: True, shutdown=lambda: seen.append("Ray stops"), serve=serve)
    api = SimpleNamespace(RunTarget=dict, run_many=lambda *_, **__: None)
    for name, module in (("ray", ray), ("ray.serve", serve), ("ray.serve.api", api)):
        monkeypatch.setitem(sys.modules, name, module)
    handed_over = threading.Event()
    if deployed:
        ray_cluster.deploy(None, "localhost", 8000, joined=address is not None, deployed=handed_over)
    ray_cluster.leave(address, lambda step: step(), handed_over)
    assert seen == done


def test_a_proxy_that_does_not_start_is_one_line_and_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: object) -> None:
        raise RuntimeError("the port is in use\nTraceback of Ray's")

    seen: list[str] = []
    serve = SimpleNamespace(start=start, delete=lambda name: seen.append(f"{name} is deleted"))
    ray = SimpleNamespace(is_initialized=lambda: True, shutdown=lambda: seen.append("Ray stops"), serve=serve)
    api = SimpleNamespace(RunTarget=dict, run_many=lambda *_, **__: seen.append("it is handed over"))
    for name, module in (("ray", ray), ("ray.serve", serve), ("ray.serve.api", api)):
        monkeypatch.setitem(sys.modules, name, module)
    handed_over = threading.Event()
    with pytest.raises(StartupError, match=r"proxy did not start \(the port is in use\)"):
        ray_cluster.deploy(None, "localhost", 8000, joined=True, deployed=handed_over)
    ray_cluster.leave(ADDRESS, lambda step: step(), handed_over)
    assert seen == ["Ray stops"]


def test_an_application_of_somebody_else_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    serve = SimpleNamespace(
        start=lambda **_: None,
        status=lambda: SimpleNamespace(applications={ray_cluster.APP_NAME: "running"}),
        delete=lambda name: seen.append(f"{name} is deleted"),
    )
    ray = SimpleNamespace(is_initialized=lambda: True, shutdown=lambda: seen.append("Ray stops"), serve=serve)
    api = SimpleNamespace(RunTarget=dict, run_many=lambda *_, **__: seen.append("it is replaced"))
    for name, module in (("ray", ray), ("ray.serve", serve), ("ray.serve.api", api)):
        monkeypatch.setitem(sys.modules, name, module)
    handed_over = threading.Event()
    with pytest.raises(StartupError, match="serves an application named peagle already"):
        ray_cluster.deploy(None, "localhost", 8000, joined=True, deployed=handed_over)
    ray_cluster.leave(ADDRESS, lambda step: step(), handed_over)
    assert seen == ["Ray stops"]
