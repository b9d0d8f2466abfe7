"""HAProxy is restarted after an unexpected end; its guard behaves like HAProxy towards Serve."""

import asyncio
import os
import re
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from peagle.serve import haproxy
from support.platforms.haproxy_front import NODE, below, in_front, listening, serves_haproxy
from support.platforms.served import free_port
from support.waiting import soon, until

pytestmark = pytest.mark.skipif(not haproxy.is_installed(), reason="Ray brings HAProxy for Linux only")


async def test_killed_it_is_back_within_a_second_and_serve_does_not_notice(
    folder: Path, ingress: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_front(folder, [ingress], monkeypatch) as (http, api):

        async def killed() -> httpx.Response:
            below(api).kill()
            while True:
                try:
                    return await http.get("/v1/models")
                except httpx.TransportError:
                    await asyncio.sleep(0.01)

        for _ in range(2):
            assert (await soon(killed, within_s=2.0)).status_code == 200
            assert await api.is_running()
        # Serve can still replace it, as it replaces a plain HAProxy.
        await api.reload()
        assert (await http.get("/v1/models")).status_code == 200


async def test_an_answer_goes_on_while_another_takes_its_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            asked.set()
            await go_on.wait()
        await JSONResponse({"whole": True})(scope, receive, send)

    async with listening(slow) as port, in_front(folder, [port], monkeypatch) as (http, api):
        first = psutil.Process(api._proc.pid)
        asking = asyncio.create_task(http.get("/slow"))
        await asked.wait()
        await api.reload()
        assert (await http.get("/v1/models")).json() == {"whole": True}
        go_on.set()
        assert (await asking).json() == {"whole": True}
        # It has no answers left to finish, and is not restarted.
        await until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
        assert len([name for name in os.listdir(folder / NODE) if re.fullmatch(r"\d+\.sock", name)]) == 1


# A minimal manager like Serve's: it starts HAProxy and waits.
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
