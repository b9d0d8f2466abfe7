"""Anthropic's error object and key header, on the routes of its Messages API."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
ROUTES = ("/v1/messages", "/v1/messages/count_tokens")
KEY = b"x-api-key"


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """Return the error object of an answer with this status."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


class AnthropicErrors:
    """Middleware that rewrites OpenAI errors as Anthropic errors on these routes.

    It also accepts a key in Anthropic's header there.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].rstrip("/").endswith(ROUTES):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if KEY in headers and b"authorization" not in headers:
            scope = {**scope, "headers": [*scope["headers"], (b"authorization", b"Bearer " + headers[KEY])]}
        held: list[Message] = []

        async def translate(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                held.append(message)
                return
            if not held:
                await send(message)
                return
            held.append(message)
            if not message.get("more_body", False):
                for each in _translated(held):
                    await send(each)
                held.clear()

        await self._app(scope, receive, translate)


def _translated(held: list[Message]) -> list[Message]:
    start, body = held[0], b"".join(part.get("body", b"") for part in held[1:])
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return held
    body = json.dumps(anthropic_error(start["status"], message)).encode()
    start = {**start, "headers": list(start.get("headers", ()))}
    MutableHeaders(scope=start)["content-length"] = str(len(body))
    return [start, {"type": "http.response.body", "body": body}]
