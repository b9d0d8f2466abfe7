"""The URL of a started server, and when it counts as ready."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from peagle.api.api_settings import ApiSettings
from peagle.config import Deployment, parse_deployment
from peagle.errors import StartupError
from peagle.host.terminal import Terminal
from peagle.serve.launch import run
from support.platforms.http_server import serving


@pytest.mark.parametrize(
    ("host", "address", "url"),
    [
        ("127.0.0.1", None, "http://127.0.0.1:80"),
        ("0.0.0.0", None, "http://127.0.0.1:80"),
        ("::", None, "http://[::1]:80"),
        ("::1", None, "http://[::1]:80"),
        ("192.168.1.5", None, "http://192.168.1.5:80"),
        ("0.0.0.0", "auto", "http://127.0.0.1:80"),
        ("127.0.0.1", "127.0.0.1:6379", "http://127.0.0.1:80"),
        ("0.0.0.0", "ray://head.example:10001", "http://head.example:80"),
        ("0.0.0.0", "10.0.0.7:6379", "http://127.0.0.1:80"),
        ("::", "ray://[fd00::7]:10001", "http://[fd00::7]:80"),
        ("10.0.0.7", "10.0.0.7:6379", "http://10.0.0.7:80"),
        ("127.0.0.1", "ray://head.example:10001", None),
        ("localhost", "10.0.0.7:6379", "http://localhost:80"),
        ("127.0.0.1", "ray://localhost:10001", "http://127.0.0.1:80"),
    ],
)
def test_a_server_is_reached_where_it_listens(host: str, address: str | None, url: str | None) -> None:
    assert run.base_url(host, 80, address) == url


@pytest.fixture
def answers() -> list[int]:
    """Numbers of replicas in a fleet's successive answers; at 0 it is unhealthy."""
    return []


@pytest.fixture
def health(answers: list[int]) -> Iterator[str]:
    """The URL of the fleet's health route, which also answers remote callers."""

    async def tell(_: web.Request) -> web.Response:
        if replicas := answers.pop(0):
            return web.json_response({"replicas": {"m": replicas}})
        return web.json_response({"error": {}}, status=503)

    app = web.Application()
    app.router.add_get("/health", tell)
    with serving(app) as url:
        yield url


def model(replicas: int) -> Deployment:
    raw = {"name": "m", "target": {"source": "org/m"}, "speculation": {"enabled": False}}
    return parse_deployment({**raw, "replicas": {"min": replicas, "max": replicas}}, origin="m.yaml")


def test_it_is_ready_when_as_many_replicas_are_well_as_are_wanted(health: str, answers: list[int]) -> None:
    slept_s: list[float] = []

    def now_s() -> float:
        return sum(slept_s)

    answers += [0, 1, 2]
    run.wait_until_all_answer(health, [model(2)], now_s=now_s, sleep=slept_s.append)
    assert not answers
    answers += [1] * 1000
    with pytest.raises(StartupError, match=r"reports \{'m': 1\} instead of \{'m': 2\}"):
        run.wait_until_all_answer(health, [model(2)], now_s=now_s, sleep=slept_s.append)


@pytest.mark.parametrize("url", ["http://[fd00::7]:8000", "http://127.0.0.1:8000"])
def test_the_address_is_shown_whole(url: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "log")
    terminal.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    run.announce([model(1)], ApiSettings(), url, terminal)
    lines = capsys.readouterr().out.splitlines()
    assert f"Ready at {url}. Try it:" in lines
    assert f"Console: {url}/" in lines


def test_the_line_to_try_has_the_key_where_one_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "log")
    terminal.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    for settings, shown in ((ApiSettings(), False), (ApiSettings(keys_file="keys"), True)):
        run.announce([model(1)], settings, "http://127.0.0.1:8000", terminal)
        assert ('-H "Authorization: Bearer $PEAGLE_API_KEY"' in capsys.readouterr().out) is shown
