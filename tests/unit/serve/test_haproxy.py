"""The real HAProxy as Ray Serve's own code starts it, with peagle's additions to its configuration."""

import asyncio
import os
import socket
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from peagle.errors import StartupError
from peagle.serve import haproxy
from peagle.serve.launch.run import put_haproxy_in_front
from support.platforms.haproxy_front import NODE, below, in_front, listening, serves_haproxy
from support.platforms.served import free_port
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.skipif(not haproxy.is_installed(), reason="Ray brings HAProxy for Linux only")

OPENAI = {"message", "type", "param", "code"}


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
        # Such a proxy appends its client's address to the received header.
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
        began_s = time.monotonic()
        answer = await http.get("/v1/models")
        assert time.monotonic() - began_s < 3.0
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert set(answer.json()["error"]) == OPENAI


async def test_what_an_ingress_process_that_has_died_does_not_take_another_does(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(folder, [free_port(), ingress], monkeypatch) as (http, _):
        took_s = []
        for _ in range(8):
            began_s = time.monotonic()
            assert (await http.get("/v1/models", headers={"connection": "close"})).status_code == 200
            took_s.append(time.monotonic() - began_s)
        # Every second one comes to the dead process first. The machine itself may stall during one.
        assert sorted(took_s)[-2] < 1.0


async def test_while_no_ingress_process_lives_serves_own_proxy_holds_no_request(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.serve._private.haproxy import BackendConfig, ServerConfig

    api = serves_haproxy(folder, [], port := free_port(), monkeypatch, "127.0.0.1")
    servers = [ServerConfig("ingress", haproxy.BEHIND_HOST, free_port())]
    own = ServerConfig("own", haproxy.BEHIND_HOST, ingress)
    api.set_backend_configs(
        {"app": BackendConfig("http-app", "/", servers=servers, app_name="app", fallback_server=own)}
    )
    await api.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            began_s = time.monotonic()
            answers = await asyncio.gather(*(http.get("/v1/models") for _ in range(8)))
            assert time.monotonic() - began_s < 3.0
            assert {answer.status_code for answer in answers} == {503}
            await until(lambda: httpx.get(f"http://127.0.0.1:{port}/ping", timeout=PATIENCE_S).content == b"")
            assert (await http.get("/ping")).status_code == 503
    finally:
        await api.stop()


async def test_an_ingress_that_ends_before_it_answers_is_a_server_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, haproxy.BEHIND_HOST, 0)
    async with server, in_front(folder, [server.sockets[0].getsockname()[1]], monkeypatch) as (http, _):
        answer = await http.post("/v1/completions", json={})
        assert answer.status_code in (502, 503)
        assert set(answer.json()["error"]) == OPENAI


async def test_an_ingress_that_dies_on_a_connection_that_had_answered_before_is_a_server_error_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    await reader.readexactly(len(b"{}"))
                    asked += 1
                if asked > 1:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer_once, haproxy.BEHIND_HOST, 0)
    async with server, in_front(folder, [server.sockets[0].getsockname()[1]], monkeypatch) as (http, _):
        assert (await http.post("/v1/completions", json={})).status_code == 200
        answer = await http.post("/v1/completions", json={})
        assert answer.status_code == 502
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
            async with asyncio.timeout(PATIENCE_S):
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


async def test_without_an_ingress_process_it_says_that_the_server_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = serves_haproxy(folder, [], port := free_port(), monkeypatch, "127.0.0.1")
    api.set_backend_configs({})
    await api.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            answer = await http.post("/v1/completions", json={})
            ping = await http.get("/ping")
    finally:
        await api.stop()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["error"]["code"] == "model_unavailable"
    assert (ping.status_code, ping.content) == (503, b"")


async def test_no_address_has_more_than_its_share_of_the_connections(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(haproxy.SHARE_KEY, "5")
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, 200 + 2 * 12))  # 12 connections, 9 of a local proxy

    async with in_front(folder, [ingress], monkeypatch) as (http, _):
        with ExitStack() as connections:
            there = (http.base_url.host, http.base_url.port)
            idle = [connections.enter_context(socket.create_connection(there)) for _ in range(12)]
            await until(lambda: sum(map(is_open, idle)) <= 9)
            await asyncio.sleep(0.5)
            assert sum(map(is_open, idle)) == 9
            # Connections remain for other addresses.
            other = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
            async with httpx.AsyncClient(transport=other, base_url=http.base_url, timeout=PATIENCE_S) as client:
                assert (await client.get("/v1/models")).status_code == 200


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_a_share_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(haproxy.SHARE_KEY, "many")
    with pytest.raises(StartupError, match=f"{haproxy.SHARE_KEY}='many'"):
        haproxy.completed("", {}, "")


async def test_its_statistics_are_for_callers_on_this_machine(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(folder, [ingress], monkeypatch, "0.0.0.0") as (http, api):
        haproxy_ = below(api)
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
