"""The application around the handlers: limits while a body is read, errors, CORS, request ids. Real ASGI calls."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient
from starlette.types import Message

from peagle.api.api_settings import ApiSettings
from peagle.api.body import read_json
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.http_metrics import Exchange, HttpMetrics, Scrape, exposition
from peagle.errors import OverloadedError

LIMIT = 2048


def application(**settings: Any) -> FastAPI:
    """The real application with handlers that read a body like the ingress, or fail."""
    app = build_http(ApiSettings(max_body_bytes=LIMIT, **settings))

    async def echo(request: Request) -> dict[str, Any]:
        return await read_json(request, app.state.settings)

    async def fail() -> None:
        raise RuntimeError("secret")

    async def busy() -> None:
        raise OverloadedError("busy", 3)

    async def breaks() -> StreamingResponse:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"start"
            raise RuntimeError("secret")

        return StreamingResponse(chunks())

    app.post("/echo")(echo)
    app.get("/fail")(fail)
    app.get("/busy")(busy)
    app.get("/breaks")(breaks)
    return app


def client(**settings: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(application(**settings)), base_url="http://test")


def error_of(response: httpx.Response) -> dict[str, Any]:
    body: dict[str, dict[str, Any]] = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


JSON = {"content-type": "application/json"}


async def test_a_body_within_the_limit_is_read() -> None:
    async with client() as http:
        answer = await http.post("/echo", json={"a": 1})
        assert answer.json() == {"a": 1}
        assert (await http.post("/echo", content=b"{}", headers={"content-type": "application/x+json"})).json() == {}


@pytest.mark.parametrize(
    ("headers", "most"),
    [({"content-length": str(10 * LIMIT)}, 0), ({}, LIMIT + 2 * 64)],
    ids=["its length is declared", "it comes in chunks"],
)
async def test_a_body_over_the_limit_is_refused_as_soon_as_that_is_known(headers: dict[str, str], most: int) -> None:
    read = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(10 * LIMIT // 64):
            read += 64
            yield b" " * 64

    async with client() as http:
        answer = await http.post("/echo", content=pieces(), headers=JSON | headers)
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "request_too_large"
    assert read <= most


async def test_a_body_that_never_arrives_is_given_up() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with client(body_timeout_s=0.05) as http:
        answer = await http.post("/echo", content=pieces(), headers=JSON)
    assert answer.status_code == 408
    error_of(answer)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_what_a_browser_may_send_unasked_is_refused(kind: str | None) -> None:
    async with client() as http:
        answer = await http.post("/echo", content=b"{}", headers={"content-type": kind} if kind else {})
    assert answer.status_code == 415
    assert "Content-Type: application/json" in error_of(answer)["message"]


async def test_unknown_paths_and_methods_are_openai_errors() -> None:
    async with client() as http:
        unknown = await http.get("/v1/nothing")
        method = await http.put("/echo")
    assert (unknown.status_code, error_of(unknown)["code"]) == (404, "unknown_url")
    assert (method.status_code, error_of(method)["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"


async def test_an_unexpected_failure_says_nothing_about_our_insides() -> None:
    async with client() as http:
        answer = await http.get("/fail")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert error_of(answer)["type"] == "server_error"


async def test_a_failure_after_the_status_breaks_the_connection() -> None:
    async with client() as http:
        with pytest.raises(RuntimeError):
            await http.get("/breaks")


async def test_an_overload_says_when_to_come_back() -> None:
    async with client() as http:
        answer = await http.get("/busy")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")


async def test_an_answer_has_a_request_id_unless_one_was_given() -> None:
    async with client() as http:
        assert (await http.get("/busy")).headers["x-request-id"]
        given = await http.get("/busy", headers={"x-request-id": "mine"})
    assert "x-request-id" not in given.headers


async def test_browsers_of_other_origins_are_refused_unless_configured() -> None:
    ask = {"origin": "https://a.test", "access-control-request-method": "POST"}
    async with client() as http:
        assert "access-control-allow-origin" not in (await http.options("/echo", headers=ask)).headers
        assert "access-control-allow-origin" not in (await http.get("/busy", headers=ask)).headers
    async with client(cors_origins=("https://a.test",)) as http:
        allowed = await http.options("/echo", headers=ask)
        assert allowed.headers["access-control-allow-origin"] == "https://a.test"
        assert "access-control-allow-credentials" not in allowed.headers
        assert (await http.get("/fail", headers=ask)).headers["access-control-allow-origin"] == "https://a.test"
        other = await http.options("/echo", headers={**ask, "origin": "https://b.test"})
        assert "access-control-allow-origin" not in other.headers


def first_tokens(counters: HttpMetrics) -> float:
    return sum(value for name, _, value in counters.values() if name == "peagle_request_ttft_seconds_count")


def test_every_series_of_a_model_begins_at_zero_so_that_rates_have_its_first_request() -> None:
    counters = HttpMetrics()
    counters.expect(["m"])
    before = {(name, labels): value for name, labels, value in counters.values()}
    assert set(before.values()) == {0.0}
    for status in (200, 404, 429, 499, 500):
        exchange = Exchange("m", ttft_s=0.1)
        counters.opened(exchange)
        for at_s in (1.0, 2.0):
            counters.sent(exchange, b'data: {"choices":[{}]}\n\n', at_s)
        counters.closed(exchange, status, 1.0)
    counters.retried("m")
    assert {(name, labels) for name, labels, _ in counters.values()} == set(before)


async def test_a_request_to_a_model_counts_by_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    app = application()
    counters: HttpMetrics = app.state.ledger.metrics

    async def chunks(ends: str) -> AsyncIterator[bytes]:
        before = first_tokens(counters)
        yield b'data: {"choices":[{"text":"a"}]}\n\n'
        assert first_tokens(counters) == before + 1  # timed when it is sent, not when the answer ends
        yield b'data: {"choices":[{"text":"b"}]}\n\n'
        if ends == "failed":
            raise RuntimeError("secret")
        if ends == "left":
            raise ClientDisconnect
        yield b'data: {"choices":[],"usage":{}}\n\n'
        yield b"data: [DONE]\n\n"
        if ends == "read":  # its client has read the last event, and leaves
            raise ClientDisconnect

    async def generate(request: Request, ends: str) -> StreamingResponse:
        request.state.exchange = Exchange("m")
        counters.opened(request.state.exchange)
        request.state.exchange.ttft_s = time.monotonic() - request.state.started_s
        return StreamingResponse(chunks(ends))

    async def shed(request: Request) -> None:
        request.state.exchange = Exchange("m")
        counters.opened(request.state.exchange)
        raise OverloadedError("busy", 3)

    app.get("/generate")(generate)
    app.get("/shed")(shed)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for path in (
            "/generate?ends=ok",
            "/generate?ends=failed",
            "/generate?ends=left",
            "/generate?ends=read",
            "/shed",
        ):
            await http.get(path)
    text = exposition(Scrape({"me": counters.values()})).decode()
    for outcome, count in (("ok", 2), ("failed", 1), ("left", 1), ("shed", 1)):
        assert f'peagle_requests_total{{ingress="me",model="m",outcome="{outcome}"}} {count}.0' in text
    assert 'peagle_requests_open{ingress="me",model="m"} 0.0' in text
    assert 'peagle_request_ttft_seconds_count{ingress="me",model="m"} 4.0' in text
    assert 'peagle_request_itl_seconds_count{ingress="me",model="m"} 4.0' in text
    assert 'peagle_request_e2e_seconds_count{ingress="me",model="m"} 2.0' in text


async def test_a_client_that_leaves_while_it_sends_counts_as_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = application()
    counters: HttpMetrics = app.state.ledger.metrics

    async def upload(request: Request) -> None:
        await request.body()

    app.post("/upload")(upload)
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Message] = []

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/upload", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    assert not sent
    assert not caplog.records
    text = exposition(Scrape({"me": counters.values()})).decode()
    assert 'route="/upload",status="499"} 1.0' in text


@pytest.mark.parametrize("model", ["tiny", "org/tiny"])
def test_a_model_of_any_name_has_its_depth_route(model: str) -> None:
    app = FastAPI()
    for name in ("limit_model_depth", "unlimit_model_depth"):
        ENDPOINTS[name](app)(lambda model: model)
    with TestClient(app) as http:
        for method in ("PUT", "DELETE"):
            assert http.request(method, f"/fleet/models/{model}/depth").json() == model


async def test_an_answer_that_comes_in_one_piece_has_a_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    app = application()
    counters: HttpMetrics = app.state.ledger.metrics

    async def whole() -> AsyncIterator[bytes]:
        yield b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[],"usage":{}}\n\ndata: [DONE]\n\n'

    async def generate(request: Request) -> StreamingResponse:
        request.state.exchange = Exchange("m", ttft_s=0.1)
        counters.opened(request.state.exchange)
        return StreamingResponse(whole())

    app.get("/generate")(generate)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        await http.get("/generate")
    assert first_tokens(counters) == 1


async def test_requests_are_counted_by_route_and_never_by_what_a_client_wrote() -> None:
    app = application()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        await http.post("/echo", json={})
        await http.get("/made-up-by-a-client")
        await http.request("MADEUP", "/echo")
    text = exposition(Scrape({"me": app.state.ledger.metrics.values()})).decode()
    assert 'peagle_http_requests_total{ingress="me",method="POST",route="/echo",status="200"}' in text
    assert 'route="unmatched",status="404"' in text
    assert "made-up" not in text
    assert "MADEUP" not in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_body_bytes": 1},
        {"max_json_depth": 1000},
        {"request_timeout_s": 0},
        {"cors_origins": ["example.org"]},
        {"cors_origins": ["https://example.org/path"]},
        {"unknown": 1},
    ],
)
def test_settings_are_strict_and_bounded(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ApiSettings.model_validate(wrong)


def test_settings_take_lists_as_yaml_has_them() -> None:
    assert ApiSettings.model_validate({"cors_origins": ["https://a.test", "*"]}).cors_origins == ("https://a.test", "*")


def test_the_application_survives_the_journey_to_a_replica() -> None:
    from ray import cloudpickle
    from ray._common.serialization import pickle_dumps
    from ray.serve.api import ensure_serialization_context

    ensure_serialization_context()
    copy = cloudpickle.loads(pickle_dumps(build_http(ApiSettings(retry_after_s=9)), "it does not travel"))
    assert copy.state.settings.retry_after_s == 9
