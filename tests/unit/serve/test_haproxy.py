"""HAProxy as Ray Serve starts it, with what peagle adds to its configuration: the real one, by Serve's own code."""

import asyncio
import os
import socket
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.errors import StartupError
from peagle.serve import haproxy
from peagle.serve.launch.run import put_haproxy_in_front
from support.kubernetes_api import until
from support.served import free_port

pytestmark = pytest.mark.skipif(not haproxy.is_installed(), reason="Ray brings HAProxy for Linux only")

OPENAI = {"message", "type", "param", "code"}
# As Ray names nodes, by which Serve names the folders of their sockets.
NODE = "7" * 56


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An ingress process that answers with the headers and the client that it is told of."""
    seen = {"headers": dict(Request(scope).headers), "client": scope["client"][0]}
    await JSONResponse(seen)(scope, receive, send)


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[int]:
    """Serve `app` as an ingress process does; yields the port."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def ingress() -> AsyncIterator[int]:
    async with listening(echo) as port:
        yield port


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of a short name, as those in which `peagle serve` keeps HAProxy's files: pytest's are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="peagle-", dir="/tmp") as name:
        yield Path(name)


def serves_haproxy(folder: Path, ports: list[int], http_port: int, monkeypatch: pytest.MonkeyPatch, host: str) -> Any:
    """Ray Serve's own control of one HAProxy before `ports`, told of peagle's program and files by their settings."""
    from ray.serve._private import haproxy as serves
    from ray.serve.config import HTTPOptions

    told = haproxy.environment(folder, host)
    monkeypatch.setenv(haproxy.LISTEN_KEY, told[haproxy.LISTEN_KEY])
    monkeypatch.setattr(serves, "RAY_SERVE_HAPROXY_BINARY_PATH", told[haproxy.PROGRAM_KEY])
    node = folder / NODE
    api = serves.HAProxyApi(
        serves.HAProxyConfig(
            http_options=HTTPOptions(host=haproxy.BEHIND_HOST, port=http_port),
            socket_path=str(node / "admin.sock"),
            server_state_base=str(node),
            server_state_file=str(node / "server-state"),
            metrics_port=int(told["RAY_SERVE_HAPROXY_METRICS_PORT"]),
            stats_port=int(told["RAY_SERVE_HAPROXY_STATS_PORT"]),
            bufsize=int(told["RAY_SERVE_HAPROXY_TUNE_BUFSIZE"]),
            maxconn=int(told["RAY_SERVE_HAPROXY_MAXCONN"]),
            metrics_enabled=False,
        ),
        config_file_path=str(node / "haproxy.cfg"),
    )
    servers = [serves.ServerConfig(f"ingress-{port}", haproxy.BEHIND_HOST, port) for port in ports]
    api.set_backend_configs({"app": serves.BackendConfig("http-app", "/", servers=servers, app_name="app")})
    return api


@asynccontextmanager
async def in_front(
    folder: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch, host: str = "127.0.0.1"
) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    port = free_port()
    api = serves_haproxy(folder, ports, port, monkeypatch, host)
    await api.start()
    try:
        name = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "::1": "[::1]"}.get(host, host)
        async with httpx.AsyncClient(base_url=f"http://{name}:{port}", timeout=10) as http:
            yield http, api
    finally:
        await api.stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "::1", "::"])
async def test_it_listens_where_it_is_told_and_says_who_asks(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with in_front(folder, [ingress], monkeypatch, host) as (http, _):
        told = (await http.get("/v1/models")).json()
        assert told["headers"]["x-forwarded-for"] == ("::1" if host.startswith("::") else "127.0.0.1")
        assert told["client"] == told["headers"]["x-forwarded-for"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
async def test_clients_of_a_proxy_on_this_machine_are_not_taken_for_callers_on_it(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async with in_front(folder, [ingress], monkeypatch, host) as (http, _):
        # Such a proxy adds whom it heard to what that one said.
        told = (await http.get("/v1/models", headers={"x-forwarded-for": "127.0.0.1, 203.0.113.9"})).json()
        assert told["client"] == "203.0.113.9"
        ipv4 = f"http://127.0.0.1:{http.base_url.port}/"
        if host == "::":
            assert (await http.get(ipv4, headers={"x-forwarded-for": "203.0.113.9"})).json()["client"] == "203.0.113.9"


async def test_a_caller_from_elsewhere_cannot_pass_for_one_of_this_machine(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = own_address()
    if elsewhere is None:
        pytest.skip("this machine has no address but its loopback's")
    async with in_front(folder, [ingress], monkeypatch, "0.0.0.0") as (http, _):
        url = f"http://{elsewhere}:{http.base_url.port}/"
        told = (await http.get(url, headers=[("x-forwarded-for", "127.0.0.1"), ("X-Forwarded-For", "::1")])).json()
        assert told["client"] == elsewhere


def own_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, suppress(OSError):
        sender.connect(("192.0.2.1", 9))  # nothing is sent
        address: str = sender.getsockname()[0]
        return address if not address.startswith("127.") else None
    return None


async def test_what_it_answers_itself_has_openais_form(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_front(folder, [free_port()], monkeypatch) as (http, _):
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert set(answer.json()["error"]) == OPENAI


async def test_an_ingress_that_ends_before_it_answers_is_a_server_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, haproxy.BEHIND_HOST, 0)
    async with server, in_front(folder, [server.sockets[0].getsockname()[1]], monkeypatch) as (http, _):
        answer = await http.post("/v1/completions", json={})
        assert answer.status_code in (429, 502)
        assert set(answer.json()["error"]) == OPENAI


async def test_who_sends_no_request_does_not_keep_a_place(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = folder / "hasty"
    hasty.write_text(f"#!{sys.executable}\nfrom peagle.serve import haproxy\nhaproxy.HEADERS_S = 1\nhaproxy.main()\n")
    hasty.chmod(0o700)
    monkeypatch.setattr(haproxy, "program_path", lambda: hasty)
    async with in_front(folder, [ingress], monkeypatch) as (http, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", http.base_url.port)
        try:
            writer.write(b"GET /v1/models HTTP/1.1\r\n")
            async with asyncio.timeout(20):
                answer = await reader.read()
        finally:
            writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_long_headers_pass(folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_front(folder, [ingress], monkeypatch) as (http, _):
        told = (await http.get("/v1/models", headers={"cookie": "x" * 50_000})).json()
        assert len(told["headers"]["cookie"]) == 50_000


async def test_a_reload_completes_the_new_configuration_too(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(folder, [free_port()], monkeypatch) as (http, api):
        from ray.serve._private.haproxy import BackendConfig, ServerConfig

        servers = [ServerConfig("ingress", haproxy.BEHIND_HOST, ingress)]
        api.set_backend_configs({"app": BackendConfig("http-app", "/", servers=servers, app_name="app")})
        await api.reload()
        assert (await http.get("/v1/models")).json()["headers"]["x-forwarded-for"] == "127.0.0.1"


async def test_its_statistics_are_for_callers_on_this_machine(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(folder, [ingress], monkeypatch, "0.0.0.0") as (http, api):
        haproxy_ = psutil.Process(api._proc.pid)
        listening = {each.laddr for each in haproxy_.net_connections() if each.status == psutil.CONN_LISTEN}
    public = {address.ip for address in listening if address.port == http.base_url.port}
    others = {address.ip for address in listening if address.port != http.base_url.port}
    assert (public, others) == ({"0.0.0.0"}, {"127.0.0.1"})


def test_a_configuration_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(StartupError, match="http_frontend"):
        haproxy.completed("global\n", {}, "")


async def test_serve_is_told_why_its_haproxy_does_not_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.serve._private import haproxy as serves

    api = serves_haproxy(folder, [free_port()], free_port(), monkeypatch, "127.0.0.1")
    monkeypatch.setattr(serves, "HAPROXY_CONFIG_TEMPLATE", "global\n")
    with pytest.raises(RuntimeError, match="RAY_SERVE_ENABLE_HA_PROXY=0"):
        await api.start()


def test_a_socket_fits_with_the_name_that_haproxy_gives_it_while_it_reloads(folder: Path) -> None:
    longest = str(folder / NODE / "metrics.sock") + f".{2**22}.tmp"
    assert len(os.fsencode(longest)) < 108


@pytest.mark.parametrize("files", [1024, 4096])
async def test_it_needs_no_more_files_than_may_be_open(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, files))
    async with in_front(folder, [ingress], monkeypatch) as (_, api):
        reader, writer = await asyncio.open_unix_connection(api.cfg.socket_path)
        writer.write(b"show info\n")
        told = dict(line.split(": ", 1) for line in (await reader.read()).decode().splitlines() if ": " in line)
        writer.close()
    assert 0.7 * files < int(told["Maxsock"]) <= files


# A manager of Serve's, as far as this goes: it starts HAProxy and waits.
MANAGER = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:]).pid, flush=True)
sys.stdin.read()
"""


async def test_it_ends_with_the_process_that_started_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = serves_haproxy(folder, [free_port()], free_port(), monkeypatch, "127.0.0.1")
    api._generate_config_file_internal()
    program = haproxy.environment(folder, "127.0.0.1")[haproxy.PROGRAM_KEY]
    command = [sys.executable, "-c", MANAGER, program, "-db", "-f", api.config_file_path]
    manager = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    assert manager.stdout is not None
    started = psutil.Process(int(await manager.stdout.readline()))
    await until(lambda: Path(api.cfg.socket_path).exists())
    manager.kill()
    await until(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize("body", [{"stream": False}, {"padding": "x" * 100_000}], ids=["short", "long"])
async def test_an_ingress_learns_that_a_client_has_left_before_its_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/v1/completions":
            await JSONResponse({})(scope, receive, send)  # HAProxy asks whether it is well
            return
        while (await receive()).get("more_body"):
            pass
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with listening(hang) as port, in_front(folder, [port], monkeypatch) as (http, _):
        for _ in range(3):
            asked.clear()
            left.clear()
            asking = asyncio.create_task(http.post("/v1/completions", json=body))
            await until(asked.is_set)
            asking.cancel()
            await until(left.is_set)


def test_an_operators_settings_stay_but_not_a_program_that_tells_no_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    theirs = {
        haproxy.PROGRAM_KEY: "/usr/sbin/haproxy",
        haproxy.TRUSTED_KEY: "10.0.0.5",
        "RAY_SERVE_HAPROXY_MAXCONN": "7",
    }
    monkeypatch.setattr(os, "environ", theirs)
    assert put_haproxy_in_front("127.0.0.1", tmp_path)
    assert os.environ["RAY_SERVE_HAPROXY_MAXCONN"] == "7"
    assert os.environ[haproxy.PROGRAM_KEY].endswith(haproxy.PROGRAM)
    assert os.environ[haproxy.TRUSTED_KEY] == "127.0.0.1,::1"
    assert haproxy.is_in_front()


def test_serves_proxy_stays_where_the_operator_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "environ", {haproxy.SWITCH_KEY: "0"})
    assert not put_haproxy_in_front("127.0.0.1", tmp_path)
    assert not haproxy.is_in_front()
