"""OpenAI's error object, `{"error": {"message", "type", "param", "code"}}`, as a response or as a stream's event."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
OVERLOADED = "rate_limit_error"
# How an event that carries an error begins, vLLM's and the platform's own.
ERROR_EVENT = 'data: {"error"'
# The same where events have names.
NAMED_ERROR_EVENT = "event: error\n"
# What nginx calls a client that closed its connection before the answer.
LEFT = 499

# Clients print messages; an engine may quote a whole prompt in one.
MAX_MESSAGE_CHARS = 1000


def has_tokens(packet: bytes) -> bool:
    """Whether any event of a packet carries a part of an answer: `relay` sends what came together as one."""
    # Once for each token: JSON escapes a quote and a line break inside a string, so what an answer says cannot be taken
    # for any of these. Events of /v1/responses are named response.….delta, those of /v1/messages content_block_delta.
    return b'"choices":[{' in packet or b".delta\ndata: " in packet or b"block_delta\ndata: " in packet


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """One error as the client sees it."""

    status: int
    message: str
    kind: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), status_code=self.status, headers=dict(self.headers))

    def event(self) -> str:
        """The error as the last event of a stream whose status is already sent."""
        return f"data: {json.dumps(self.body())}\n\n"


# Nothing can be asked yet, or for a moment: what takes requests is being started.
STARTING = ErrorReply(
    503, "The server is starting.", SERVER_ERROR, code="model_unavailable", headers={"retry-after": "1"}
)


def from_status(
    status: int,
    message: str,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ErrorReply:
    """A reply for a status that something else chose; a 5xx keeps its reasons to itself."""
    if status >= 500:
        return ErrorReply(status, "The server failed to answer this request.", SERVER_ERROR)
    # An entity that vLLM could not process is, to OpenAI's clients, an invalid request.
    status = 400 if status == 422 else status
    return ErrorReply(status, bounded(message), INVALID_REQUEST, param, code, headers or {})


def overloaded(message: str, retry_after_s: float) -> ErrorReply:
    return ErrorReply(429, bounded(message), OVERLOADED, code="overloaded", headers=_retry_after(retry_after_s))


def limited(message: str, retry_after_s: float | None) -> ErrorReply:
    """The reply to a request beyond a limit of its client's; None where it will stay so."""
    # OpenAI's clients ask again of themselves, unless they are told not to.
    headers = {"x-should-retry": "false"} if retry_after_s is None else _retry_after(retry_after_s)
    return ErrorReply(429, bounded(message), OVERLOADED, code="rate_limit_exceeded", headers=headers)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def bounded(message: str) -> str:
    message = message.strip()
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"
