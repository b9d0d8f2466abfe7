"""The edge around Serve's proxy: which headers reach the proxy, and how its own answers are rewritten."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.api.edge import Edge, middlewares


async def ask(app: ASGIApp, path: str = "/v1/models", headers: Any = None) -> httpx.Response:
    transport = httpx.ASGITransport(Edge(app), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        return await http.get(path, headers=headers)


async def headers_seen(sent: list[tuple[bytes, bytes]]) -> dict[str, str]:
    async def echo(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse(dict(Request(scope).headers))(scope, receive, send)

    seen: dict[str, str] = (await ask(echo, headers=sent)).json()
    return seen


@pytest.mark.parametrize(
    "name",
    [
        "x-request-disconnect-disabled",
        "X-Request-Timeout-Seconds",
        "x_request_timeout-seconds",
        "serve_multiplexed_model_id",
        "Serve-Multiplexed-Model-Id",
    ],
)
async def test_no_client_orders_the_proxy_to_do_something_however_it_spells_it(name: str) -> None:
    assert name.lower() not in await headers_seen([(name.encode(), b"?1")])


@pytest.mark.parametrize("value", [b"\xe9", b"x" * 129, b"a b"])
async def test_a_request_id_that_is_no_plain_id_is_dropped(value: bytes) -> None:
    assert "x-request-id" not in await headers_seen([(b"x-request-id", value)])


async def test_other_headers_pass_unless_the_proxy_would_fail_on_them() -> None:
    seen = await headers_seen([(b"x-request-id", b"mine-1"), (b"authorization", b"Bearer x"), (b"x-session", b"\xff")])
    assert (seen["x-request-id"], seen["authorization"]) == ("mine-1", "Bearer x")
    assert "x-session" not in seen


@pytest.mark.parametrize(
    ("status", "headers", "answered"),
    [(408, {}, 408), (429, {"retry-after": "7"}, 429), (503, {}, 429), (500, {}, 500)],
)
async def test_the_proxys_own_errors_become_openais(status: int, headers: dict[str, str], answered: int) -> None:
    answer = await ask(PlainTextResponse("Request 1 timed out.", status, headers))
    assert answer.status_code == answered
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers.get("retry-after") == ({429: "7", 503: "1"}.get(status))


@pytest.mark.parametrize(
    ("routes", "answered"),
    [
        (JSONResponse({"/other": "other"}), 404),
        (JSONResponse({}), 503),
        (PlainTextResponse("Route table is not populated yet.", 503), 503),
    ],
)
async def test_until_the_proxy_knows_an_application_it_says_that_the_server_starts(
    routes: Response, answered: int
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer = routes if scope["path"] == "/-/routes" else PlainTextResponse("Path not found.", 404)
        await answer(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(Edge(app)), base_url="http://test") as http:
        answer = await http.get("/health?x=1")
        assert answer.status_code == answered
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert answer.headers.get("retry-after") == ("1" if answered == 503 else None)
        ping = await http.get("/ping")
        assert (ping.status_code, ping.content) == (503, b"")


async def test_a_proxy_that_leaves_keeps_no_connection_open() -> None:
    health = PlainTextResponse("This node is being drained.", 503)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        answer = health if scope["path"] == "/-/healthz" else PlainTextResponse("no", 404)
        await answer(scope, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(Edge(app)), base_url="http://test") as http:
        assert "connection" not in (await http.get("/v1/models")).headers
        assert (await http.get("/-/healthz")).status_code == 503
        assert (await http.get("/v1/models")).headers["connection"] == "close"
        health.status_code = 200
        await http.get("/-/healthz")
        assert "connection" not in (await http.get("/v1/models")).headers


async def test_answers_of_the_application_pass_untouched() -> None:
    answer = await ask(JSONResponse({"error": "mine"}, 400))
    assert (answer.status_code, answer.json()) == (400, {"error": "mine"})
    assert (await ask(PlainTextResponse("metrics"))).text == "metrics"
    assert (await ask(PlainTextResponse("unhealthy", 503), "/-/healthz")).text == "unhealthy", "the proxy's own path"


async def test_a_proxy_that_fails_or_says_nothing_is_a_server_error() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret")

    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        return

    for app in (fails, silent):
        answer = await ask(app)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert answer.json()["error"]["type"] == "server_error"


def cut(kind: bytes) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})

    return app


async def test_a_stream_whose_ingress_is_lost_ends_with_an_error_event() -> None:
    text = (await ask(cut(b"text/event-stream; charset=utf-8"))).text
    assert text.startswith('data: {}\n\ndata: {"error": {"message": "The server ended before')


async def test_a_cut_answer_that_is_no_stream_is_not_completed() -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await Edge(cut(b"application/json"))(scope, receive, send)
    assert messages[-1]["more_body"] is True


def test_serve_finds_the_middleware_by_its_path() -> None:
    from ray.serve._private.http_util import validate_http_proxy_callback_return
    from ray.serve._private.utils import call_function_from_import_path

    built = call_function_from_import_path("peagle.api.edge.middlewares")
    assert [middleware.cls for middleware in validate_http_proxy_callback_return(built)] == [Edge]
    assert middlewares()[0].cls is Edge


async def test_what_fails_after_its_client_has_left_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.disconnect"
        raise RuntimeError("dictionary changed size during iteration")

    said: list[Any] = []

    async def leave() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def hear(message: Any) -> None:
        said.append(message)

    await Edge(fail)({"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}, leave, hear)
    assert (said, caplog.records) == ([], [])
