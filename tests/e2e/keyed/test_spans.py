"""`peagle serve --traces-to`: one request is one trace, from the client's own span to vLLM's."""

import json
import secrets
from typing import Any

import httpx
import pytest

from support.observe.trace_collector import Collector, Span
from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

ENGINE = "llm_request"


def post(served: Served, path: str, body: dict[str, Any], traceparent: str | None) -> str:
    """Return the text of the answer to a request with `traceparent`."""
    headers = {"authorization": "Bearer sk-few"} | ({"traceparent": traceparent} if traceparent else {})
    body = {"model": served.model, "max_tokens": 12, "temperature": 0, **body}
    answer = httpx.post(f"{served.url}{path}", json=body, headers=headers, timeout=60)
    return answer.raise_for_status().text


def usage_of_chat(served: Served, traceparent: str | None) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "def f(x):"}]}
    usage: dict[str, Any] = json.loads(post(served, "/v1/chat/completions", body, traceparent))["usage"]
    return usage


def usage_of_stream(served: Served, traceparent: str | None) -> dict[str, Any]:
    body = {"prompt": "import os\n", "stream": True, "stream_options": {"include_usage": True}}
    events = post(served, "/v1/completions", body, traceparent).split("\n\n")
    usage: dict[str, Any] = json.loads(events[-3].removeprefix("data: "))["usage"]
    return usage


def way_up(spans: list[Span], trace_id: str) -> list[Span]:
    """Return vLLM's span of a trace and its ancestors, as far as they have arrived."""
    by_id = {span.span_id: span for span in spans if span.trace_id == trace_id}
    way = engines(list(by_id.values()))
    while way and (parent := by_id.get(way[-1].parent_id)) is not None:
        way.append(parent)
    return way


def engines(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.name == ENGINE]


@pytest.mark.parametrize(
    ("ask", "method", "path"),
    [(usage_of_chat, "chat", "/v1/chat/completions"), (usage_of_stream, "completions", "/v1/completions")],
)
def test_a_request_is_one_trace_from_the_client_to_the_engine(
    keyed: Served, collector: Collector, ask: Any, method: str, path: str
) -> None:
    trace_id, client = secrets.token_hex(16), secrets.token_hex(8)
    usage = ask(keyed, f"00-{trace_id}-{client}-01")
    spans = collector.wait_for(lambda spans: client in {span.parent_id for span in way_up(spans, trace_id)})
    engine, replica, dispatch, *rest = way_up(spans, trace_id)
    server = f"PeagleServer:{keyed.model}"
    assert [span.name for span in (engine, replica, dispatch, *rest)] == [
        ENGINE,
        f"replica_handle_request {server} {method}",
        f"route_to_replica {server} {method}",
        "replica_handle_request Ingress __call__",
        f"POST {path}",
    ]
    assert rest[-1].parent_id == client
    assert rest[-1].attributes["http.response.status_code"] == 200
    assert engine.attributes["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert engine.attributes["gen_ai.usage.completion_tokens"] == usage["completion_tokens"] == 12
    (row,) = keyed.fleet()
    assert dispatch.attributes["peagle.dispatch.replica_id"] == row["id"] == replica.attributes["replica_id"]
    assert dispatch.attributes["peagle.dispatch.reason"] in {"soonest", "home", "least-in-flight"}
    assert {span.service for span in spans} == {"peagle"}


def test_a_trace_begins_with_a_request_that_its_client_does_not_decline(keyed: Served, collector: Collector) -> None:
    """No trace begins in the middle of a request, or with messages between the platform's processes."""
    usage_of_chat(keyed, f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00")
    asked = len(engines(collector.spans))
    usage_of_chat(keyed, None)
    spans = collector.wait_for(lambda spans: any(not span.parent_id for span in spans) and len(engines(spans)) > asked)
    (begun,) = [span for span in spans if not span.parent_id]
    assert begun.name == "POST /v1/chat/completions"
    spans = collector.wait_for(lambda spans: begun in way_up(spans, begun.trace_id))
    assert len(engines(spans)) == asked + 1
    ways = [way_up(spans, trace_id) for trace_id in {span.trace_id for span in spans}]
    assert sum(map(len, ways)) == len(spans), [(span.name, span.trace_id) for span in spans]
