"""The first span of each request, around Serve's proxy: continues the client's trace and makes the sampling decision.

Serve makes its own spans from here on. It does not pass an unsampled span to the next process, which would then sample
again. So Serve never starts a trace itself; it continues the trace of this span.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.api.reply import ERROR_EVENT, LEFT, NAMED_ERROR_EVENT
from peagle.tracing import context_of, continue_in

# Paths used as span names; clients may send arbitrary other paths.
ROUTES = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
        *("/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"),
        *("/invocations", "/tokenize", "/detokenize"),
    }
)
_ERROR_EVENTS = (ERROR_EVENT.encode(), NAMED_ERROR_EVENT.encode())
# W3C Trace Context.
TRACE_HEADERS = frozenset({b"traceparent", b"tracestate"})


class Traced:
    """Traces model requests. Reads (models, health, metrics) are traced only within a client's trace, by Serve."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        told = {name.decode(): value.decode("latin-1") for name, value in scope["headers"] if name in TRACE_HEADERS}
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        name = f"POST {scope['path']}" if scope["path"] in ROUTES else "POST"
        span = self._tracer.start_span(name, context_of(told), SpanKind.SERVER, attributes)
        seen = _Seen(receive, send)
        try:
            await self._app(_with_trace(scope, span), seen.hear, seen.say)
        finally:
            if status := seen.status or (LEFT if seen.left else 0):
                span.set_attribute("http.response.status_code", status)
            if seen.failed:
                span.set_status(Status(StatusCode.ERROR))
            span.end()


class _Seen:
    """Observes a request and its answer for the span's attributes."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._broken, self._whole = False, False
        self.status = 0
        self.left = False

    @property
    def failed(self) -> bool:
        """Whether the server failed: with an error answer, an error event, or a stream without an end."""
        return self.status >= 500 or self._broken or not (self._whole or self.left)

    async def hear(self) -> Message:
        message = await self._receive()
        # A connection is also closed after a complete answer.
        self.left = self.left or (message["type"] == "http.disconnect" and not self._whole)
        return message

    async def say(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._broken = self._broken or message.get("body", b"").startswith(_ERROR_EVENTS)
        await self._send(message)
        self._whole = message["type"] == "http.response.body" and not message.get("more_body", False)


def _with_trace(scope: Scope, span: Span) -> Scope:
    """Return `scope` with the headers that make Serve and the engine continue `span`."""
    told: dict[str, str] = {}
    continue_in(told, set_span_in_context(span))
    others = [(name, value) for name, value in scope["headers"] if name not in TRACE_HEADERS]
    return {**scope, "headers": [*others, *((name.encode(), value.encode()) for name, value in told.items())]}
