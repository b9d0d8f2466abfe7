"""A collector of OpenTelemetry spans over OTLP/HTTP, in this process."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from support.platforms.http_server import serving
from support.waiting import PATIENCE_S


@dataclass(frozen=True)
class Span:
    """What a test looks at; ids are hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    service: str


@dataclass
class Collector:
    """Spans in the order in which they came. `url` is what to send them to."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)

    def wait_for(self, what: Callable[[list[Span]], bool]) -> list[Span]:
        """Return all spans once `what` holds of them; they come in batches, some seconds after they ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not what(self.spans):
            assert time.monotonic() < deadline, [(span.name, span.trace_id) for span in self.spans]
            time.sleep(0.2)
        return list(self.spans)


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        service = next(each.value.string_value for each in resource.resource.attributes if each.key == "service.name")
        for scope in resource.scope_spans:
            for span in scope.spans:
                attributes = {each.key: _plain(each.value) for each in span.attributes}
                ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
                yield Span(span.name, *ids, attributes, service)


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    async def collect(request: web.Request) -> web.Response:
        collector.spans += _spans(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response()

    app = web.Application(client_max_size=2**30)
    app.router.add_post("/v1/traces", collect)
    with serving(app) as url:
        collector.url = f"{url}/v1/traces"
        yield collector
