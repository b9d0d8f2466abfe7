"""The first span of a request: whose trace it continues, what it tells Serve, and what it says of the answer."""

from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import StatusCode
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.api.traced import Traced

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, DECLINED = f"00-{TRACE}-{CLIENT}-01", f"00-{TRACE}-{CLIENT}-00"


async def headers_seen(scope: Scope, receive: Receive, send: Send) -> None:
    await JSONResponse(dict(Request(scope).headers))(scope, receive, send)


async def ask(
    ratio: float, headers: dict[str, str], app: ASGIApp = headers_seen, method: str = "POST"
) -> tuple[dict[str, Any], list[Any]]:
    """What the application saw, and the spans."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(ratio))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    transport = httpx.ASGITransport(Traced(app, provider.get_tracer("test")), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.request(method, "/v1/completions", headers=headers)
    return answer.json() if answer.content else {}, list(exporter.get_finished_spans())


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
    ("status", "name", "code"),
    [
        (404, "POST", StatusCode.UNSET),
        (429, "POST /v1/completions", StatusCode.UNSET),
        (502, "POST /v1/completions", StatusCode.ERROR),
    ],
)
async def test_a_span_says_what_became_of_the_request(status: int, name: str, code: StatusCode) -> None:
    """A path that nothing answers at is in no name: clients could make up any number of them."""
    _, (span,) = await ask(1.0, {}, JSONResponse({}, status))
    assert (span.name, span.status.status_code) == (name, code)


async def test_a_failure_without_an_answer_ends_the_span_as_an_error() -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError

    _, (span,) = await ask(1.0, {}, fails)
    assert span.status.status_code is StatusCode.ERROR
