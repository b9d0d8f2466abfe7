"""The first span of a request: the trace that it continues, its sampling, and its attributes."""

from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import StatusCode
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.api.edge import Edge
from peagle.api.http_app import ENDPOINTS, NOT_GENERATED
from peagle.api.reply import from_status
from peagle.api.traced import ROUTES, Traced

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, DECLINED = f"00-{TRACE}-{CLIENT}-01", f"00-{TRACE}-{CLIENT}-00"


async def headers_seen(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(dict(Request(scope).headers))(scope, receive, send)


async def ask(
    ratio: float,
    headers: dict[str, str],
    app: ASGIApp = headers_seen,
    method: str = "POST",
    path: str = "/v1/completions",
) -> tuple[dict[str, Any], list[Any]]:
    """Return the request that the application saw, and the spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(ratio))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    transport = httpx.ASGITransport(Traced(app, provider.get_tracer("test")), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.request(method, path, headers=headers)
    is_json = answer.headers.get("content-type") == "application/json"
    return answer.json() if is_json else {}, list(exporter.get_finished_spans())


def is_sampled(headers: dict[str, str]) -> bool:
    return bool(int(headers["traceparent"][-2:], 16) & 1)


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_a_clients_trace_goes_on_whatever_the_ratio(ratio: float) -> None:
    seen, (span,) = await ask(ratio, {"traceparent": SAMPLED, "tracestate": "vendor=1"})
    assert f"{span.parent.span_id:016x}" == CLIENT
    assert seen["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert seen["tracestate"] == "vendor=1"
    assert span.name == "POST /v1/completions"
    assert span.attributes["http.response.status_code"] == 200


async def test_a_client_that_declines_is_not_traced_further_on_either() -> None:
    seen, spans = await ask(1.0, {"traceparent": DECLINED})
    assert spans == []
    assert seen["traceparent"].startswith(f"00-{TRACE}-")
    assert not is_sampled(seen)


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-not-one-01"}])
async def test_where_the_client_is_silent_the_ratio_decides_for_all(headers: dict[str, str]) -> None:
    seen, (span,) = await ask(1.0, headers)
    assert span.parent is None
    assert seen["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")
    assert is_sampled(seen)
    seen, spans = await ask(0.0, headers)
    assert spans == []
    assert not is_sampled(seen)


async def test_reading_is_left_as_the_client_sent_it() -> None:
    seen, spans = await ask(1.0, {"traceparent": SAMPLED}, method="GET")
    assert spans == []
    assert seen["traceparent"] == SAMPLED


@pytest.mark.parametrize(
    ("status", "code"), [(401, StatusCode.UNSET), (429, StatusCode.UNSET), (502, StatusCode.ERROR)]
)
async def test_a_span_says_what_became_of_the_request(status: int, code: StatusCode) -> None:
    _, (span,) = await ask(1.0, {}, JSONResponse({}, status))
    assert (span.attributes["http.response.status_code"], span.status.status_code) == (status, code)


@pytest.mark.parametrize("status", [200, 401, 404])
async def test_a_path_that_is_no_route_is_in_no_name(status: int) -> None:
    """Clients could send any number of different paths."""
    _, (span,) = await ask(1.0, {}, JSONResponse({}, status), path="/v1/made-up")
    assert span.name == "POST"


def test_spans_are_named_after_every_route_that_asks_for_work() -> None:
    async def handler() -> None:
        """Matches any value."""

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    for bind in ENDPOINTS.values():
        bind(app)(handler)
    working = {route.path for route in app.routes if "POST" in route.methods}  # type: ignore[attr-defined]
    assert working - {*NOT_GENERATED, "/v1/responses/{response_id:path}"} == ROUTES


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    """An application whose client disconnects, and that sends no answer."""
    assert (await receive())["type"] == "http.disconnect"


def stream(*pieces: bytes, ends: bool = True) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        kind = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [kind]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b""})

    return app


TOKEN, ERROR = b'data: {"choices":[]}\n\n', from_status(502, "lost").event().encode()


@pytest.mark.parametrize(
    ("app", "code"),
    [
        (fails, StatusCode.ERROR),
        (stream(TOKEN, ERROR), StatusCode.ERROR),
        (stream(TOKEN), StatusCode.UNSET),
    ],
    ids=["no answer", "an error event", "whole"],
)
async def test_a_failure_ends_the_span_as_an_error_whatever_its_status(app: ASGIApp, code: StatusCode) -> None:
    _, (span,) = await ask(1.0, {}, app)
    assert span.status.status_code is code


@pytest.mark.parametrize(
    ("app", "status", "code", "sent"),
    [(silent, 499, StatusCode.UNSET, 0), (stream(TOKEN, ends=False), 200, StatusCode.ERROR, 2)],
    ids=["left", "cut"],
)
async def test_a_client_that_leaves_is_no_error_and_an_answer_that_is_cut_is_one(
    app: ASGIApp, status: int, code: StatusCode, sent: int
) -> None:
    exporter, provider, messages = InMemorySpanExporter(), TracerProvider(), []
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    within = Edge(app) if app is silent else app
    await Traced(within, provider.get_tracer("test"))(scope, receive, send)
    (span,) = exporter.get_finished_spans()
    assert len(messages) == sent
    assert span.attributes is not None
    assert (span.attributes["http.response.status_code"], span.status.status_code) == (status, code)
