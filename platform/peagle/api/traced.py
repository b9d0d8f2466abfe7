"""The first span of each request, around Serve's proxy: it continues the client's trace, and decides whether to trace.

Serve makes spans of its own from here on, but leaves a span that is not sampled out of what it tells the next process,
which then draws again. So Serve never starts a trace here; it continues the one of this span.
"""

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.api.reply import ERROR_EVENT, LEFT, NAMED_ERROR_EVENT
from peagle.tracing import context_of, continue_in

# What spans are named after; a client is free to invent other paths.
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
    """Traces what asks for work. Reading (models, health, metrics) is only traced in a client's own trace, by Serve."""

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
    """What passes between a client and the application, as far as a span tells of it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._broken, self._whole = False, False
        self.status = 0
        self.left = False

    @property
    def failed(self) -> bool:
        """Whether there was an error of the server's: as the answer, at the end of a stream, or in place of an end."""
        return self.status >= 500 or self._broken or not (self._whole or self.left)

    async def hear(self) -> Message:
        message = await self._receive()
        # A connection whose answer is out is closed, too.
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
    """Return `scope` with the headers by which Serve, and an engine, continue `span` and no other."""
    told: dict[str, str] = {}
    continue_in(told, set_span_in_context(span))
    others = [(name, value) for name, value in scope["headers"] if name not in TRACE_HEADERS]
    return {**scope, "headers": [*others, *((name.encode(), value.encode()) for name, value in told.items())]}
