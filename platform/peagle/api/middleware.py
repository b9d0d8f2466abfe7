"""The outermost layer: pure ASGI, so that streams and disconnects pass through it unchanged."""

import logging
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.api.dialects.stream_kinds import is_whole
from peagle.api.http_metrics import HttpMetrics
from peagle.api.ledger import Ledger
from peagle.api.openai_errors import describe
from peagle.api.reply import LEFT

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"


class Guard:
    """Gives each request an id, counts it unless counting is off, and answers exceptions that nothing else caught."""

    def __init__(self, app: ASGIApp, counts: bool = True) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID)
        request_id = given or uuid.uuid4().hex
        started = time.monotonic()
        # Decided once per request, so that a request counted as open is also counted as closed.
        ledger: Ledger = scope["app"].state.ledger
        counted = self._counts and ledger.metrics.counting
        scope.setdefault("state", {}).update(request_id=request_id, started_s=started, counted=counted)
        status: int | None = None
        whole = False

        async def observe(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                if given is None:
                    # Serve's proxy echoes the id, whether it made it or received it.
                    MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)
            piece = message.get("body", b"")
            # Clients close a stream after its last event, which may be before the empty end of the body is sent.
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            whole = whole or is_last or is_whole(piece)
            if (exchange := scope["state"].get("exchange")) is not None and piece:
                ledger.metrics.sent(exchange, piece, time.monotonic())

        try:
            await self._app(scope, receive, observe)
        except ClientDisconnect:
            # The client has disconnected; without a status the request counts as left.
            if status is not None:
                raise
        except Exception as error:
            logger.exception("Request %s failed.", request_id)
            if status is not None:
                # The status is already sent: only a broken connection can still signal an incomplete answer.
                if (exchange := scope["state"].get("exchange")) is not None:
                    exchange.fail()
                raise
            await describe(error).response()(scope, receive, observe)
        finally:
            if counted:
                _count(ledger.metrics, scope, status, whole, time.monotonic() - started)


def _count(metrics: HttpMetrics, scope: Scope, status: int | None, whole: bool, seconds: float) -> None:
    # A request without a status was abandoned by its client.
    status = status or LEFT
    metrics.observe(scope["method"], getattr(scope.get("route"), "path", "unmatched"), status, seconds)
    if (exchange := scope["state"].get("exchange")) is not None:
        metrics.closed(exchange, status if whole else LEFT, seconds)
