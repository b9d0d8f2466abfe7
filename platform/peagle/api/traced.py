"""The first span of each request, around Serve's proxy: it continues the client's trace, and decides whether to trace.

Serve makes spans of its own from here on, but leaves a span that is not sampled out of what it tells the next process,
which then draws again. So Serve never starts a trace here; it continues the one of this span.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.tracing import context_of, continue_in

# W3C Trace Context.
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})


class Traced:
    """Traces what asks for work. Reading (models, health, metrics) is only traced in a client's own trace, by Serve."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        told = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in TRACE_HEADERS}
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Named without the path, which a client is free to invent, until something has answered there.
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        span = self._tracer.start_span("POST", context_of(told), SpanKind.SERVER, attributes)
        try:
            await self._app(_with_trace(scope, span), receive, note)
        finally:
            if status:
                span.set_attribute("http.response.status_code", status)
            if status not in (404, 405):
                span.update_name(f"POST {scope['path']}")
            if status >= 500 or not status:
                span.set_status(Status(StatusCode.ERROR))
            span.end()


def _with_trace(scope: Scope, span: Span) -> Scope:
    """Return `scope` with the headers by which Serve, and an engine, continue `span` and no other."""
    told: dict[str, str] = {}
    continue_in(told, set_span_in_context(span))
    others = [(name, value) for name, value in scope["headers"] if name not in TRACE_HEADERS]
    return {**scope, "headers": [*others, *((name.encode(), value.encode()) for name, value in told.items())]}
