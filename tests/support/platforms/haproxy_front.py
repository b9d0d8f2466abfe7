"""The real HAProxy in front of ingress processes, started by Serve's own code and peagle's program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.serve import haproxy
from support.platforms.served import free_port
from support.waiting import PATIENCE_S

# A Ray node id, after which Serve names the folders of its sockets.
NODE = "7" * 56


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """An ingress process that answers with the received headers and client address."""
    seen = {"headers": dict(Request(scope).headers), "client": scope["client"][0]}
    await JSONResponse(seen)(scope, receive, send)


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[int]:
    """Serve `app` like an ingress process; yields the port."""
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


def serves_haproxy(folder: Path, ports: list[int], http_port: int, monkeypatch: pytest.MonkeyPatch, host: str) -> Any:
    """Ray Serve's own control of one HAProxy in front of `ports`, configured with peagle's program and files."""
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
            timeout_connect_s=int(told["RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S"]),
            retries=int(told["RAY_SERVE_HAPROXY_RETRIES"]),
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
        async with httpx.AsyncClient(base_url=f"http://{name}:{port}", timeout=PATIENCE_S) as http:
            yield http, api
    finally:
        await api.stop()


def below(api: Any) -> psutil.Process:
    """Return HAProxy's own process, below the program that Serve has started."""
    (found,) = psutil.Process(api._proc.pid).children()
    return found
