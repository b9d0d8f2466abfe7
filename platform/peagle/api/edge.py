"""Middleware around Serve's proxy, in its process: filters request headers and rewrites the proxy's errors.

The proxy obeys some headers, among them one that keeps a request running after its client has disconnected; it fails
on headers that are not UTF-8; and it answers in plain text. A process that starts Ray sets
`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` to `peagle.api.edge.middlewares` to wrap each of its proxies; behind
HAProxy, this wraps the proxy part of each ingress process.
"""

import json
import logging
import re

from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.api.dialects.anthropic_errors import AnthropicErrors
from peagle.api.dialects.stream_kinds import kind_at
from peagle.api.reply import SERVER_ERROR, STARTING, ErrorReply, from_status, overloaded
from peagle.tracing import is_on, request_tracer

logger = logging.getLogger(__name__)

# Commands to the proxy that only the operator may give, not a client; it reads _ as - in their names.
INTERNAL_HEADERS = frozenset(
    {b"x-request-timeout-seconds", b"x-request-disconnect-disabled", b"serve-multiplexed-model-id"}
)
REQUEST_ID = b"x-request-id"
_PLAIN_ID = re.compile(rb"[!-~]{1,128}")
# The proxy's own paths, not meant for OpenAI clients; one of them tells whether the proxy accepts requests.
_PROXY_PATHS, _HEALTH, _ROUTES = "/-/", "/-/healthz", "/-/routes"
# SageMaker's health check, which must have no body.
PING = "/ping"


def middlewares() -> list[Middleware]:
    """Return the middlewares around Serve's proxy, outermost last."""
    if not is_on():
        return [Middleware(Edge)]
    # Imported here: it imports OpenTelemetry.
    from peagle.api.traced import Traced

    return [Middleware(Edge), Middleware(Traced, tracer=request_tracer())]


class Edge:
    """Drops headers that only the platform may set; turns the proxy's own errors into OpenAI's error object.

    Once the proxy's health check refuses new requests, each connection is closed after its answer. Otherwise a
    client with a kept-alive connection would stay until the proxy is stopped in the middle of a stream.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._is_leaving = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_PROXY_PATHS):
            is_probe = scope["type"] == "http" and scope["path"] == _HEALTH
            await self._app(scope, receive, self._noting(send) if is_probe else send)
            return
        if self._is_leaving:
            send = _closing(send)
        scope["headers"] = [(name, value) for name, value in scope["headers"] if _is_allowed(name, value)]
        answer = _Answer(scope, receive, send)
        try:
            await self._app(scope, answer.hear, answer.pass_on)
        except Exception:
            # Serve may fail on its own list of requests to cancel after the client has disconnected.
            if not answer.left:
                logger.exception("The proxy failed on %s %s.", scope["method"], scope["path"])
        await answer.complete(starting=answer.is_plain(404) and not await self._has_routes(scope))

    async def _has_routes(self, scope: Scope) -> bool:
        """Whether the proxy reports any application; until then it answers 404 to every path."""
        said: list[Message] = []

        async def hear() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def keep(message: Message) -> None:
            said.append(message)

        raw = {"raw_path": _ROUTES.encode(), "query_string": b"", "headers": []}
        await self._app({**scope, "method": "GET", "path": _ROUTES, **raw}, hear, keep)
        try:
            routes = json.loads(b"".join(message.get("body", b"") for message in said))
        except ValueError:  # a text that says why it has none
            return False
        return bool(routes)

    def _noting(self, send: Send) -> Send:
        """Pass on the answer to a health probe and remember it."""

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._is_leaving = message["status"] == 503
            await send(message)

        return note


def _closing(send: Send) -> Send:
    """Ask the server to close the connection after the answer."""

    async def close(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return close


def _is_allowed(name: bytes, value: bytes) -> bool:
    if name.replace(b"_", b"-") in INTERNAL_HEADERS:
        return False
    if name == REQUEST_ID:
        return _PLAIN_ID.fullmatch(value) is not None
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Answer:
    """One response in progress: plain text errors are replaced, and an unfinished response is completed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._plain: tuple[int, list[bytes]] | None = None
        self._retry_after = b""
        self._streams = False
        self._started = self._completed = False
        self.left = False

    async def hear(self) -> Message:
        message = await self._receive()
        self.left = self.left or message["type"] == "http.disconnect"
        return message

    async def pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message.get("headers", ()))
            kind = headers.get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
            if message["status"] >= 400 and kind.startswith(b"text/plain"):
                self._plain = message["status"], []
                self._retry_after = headers.get(b"retry-after", b"")
                return
            self._started = True
        elif self._plain is not None:
            self._plain[1].append(message.get("body", b""))
            return
        elif message["type"] == "http.response.body":
            self._completed = not message.get("more_body", False)
        await self._send(message)

    def is_plain(self, status: int) -> bool:
        """Whether the proxy itself answered with `status`."""
        return self._plain is not None and self._plain[0] == status

    async def complete(self, starting: bool) -> None:
        """Send the missing end of the answer; while the server starts, say so.

        A truncated answer that is not a stream is left to break, so that it is not mistaken for a complete one.
        A client that disconnected is sent nothing: the proxy ends its request silently.
        """
        if self._completed or self.left:
            return
        if not self._started:
            reply: Response = (STARTING if starting else self._reply()).response()
            if self._scope["path"] == PING:
                reply = Response(status_code=503)
            await AnthropicErrors(reply)(self._scope, self._receive, self._send)
        elif self._streams:
            lost = ErrorReply(502, "The server ended before its answer was complete.", SERVER_ERROR)
            event = kind_at(self._scope["path"]).error_event(lost)
            await self._send({"type": "http.response.body", "body": event.encode(), "more_body": False})

    def _reply(self) -> ErrorReply:
        status, parts = self._plain or (500, [])
        return in_openai_form(status, b"".join(parts).decode(errors="replace"), float(self._retry_after or 1))


def in_openai_form(status: int, text: str = "", retry_after_s: float = 1.0) -> ErrorReply:
    """Return the proxy's plain text error as an OpenAI error; 429 and 503 are reported as overload."""
    if status in (429, 503):
        return overloaded("The server is busy or starting.", retry_after_s)
    return from_status(status, text)
