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
# Prefix of an error event, of vLLM and of the platform.
ERROR_EVENT = 'data: {"error"'
# The same for streams with named events.
NAMED_ERROR_EVENT = "event: error\n"
# nginx's status for a client that closed its connection before the answer.
LEFT = 499

# Clients print messages, and an engine may quote a whole prompt in one.
MAX_MESSAGE_CHARS = 1000


def has_tokens(packet: bytes) -> bool:
    """Whether any event of a packet carries part of an answer; `relay` joins events that arrive together."""
    # Runs once per token. JSON escapes quotes and line breaks inside strings, so generated text cannot match any of
    # these. Events of /v1/responses are named response.….delta, those of /v1/messages content_block_delta.
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
        """Return the error as the last event of a stream whose status was already sent."""
        return f"data: {json.dumps(self.body())}\n\n"


# No request can be served for the moment: the processes that accept requests are starting.
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
    """Return a reply for a given status; a 5xx does not reveal its reason."""
    if status >= 500:
        return ErrorReply(status, "The server failed to answer this request.", SERVER_ERROR)
    # vLLM's unprocessable entity is an invalid request for OpenAI's clients.
    status = 400 if status == 422 else status
    return ErrorReply(status, bounded(message), INVALID_REQUEST, param, code, headers or {})


def overloaded(message: str, retry_after_s: float) -> ErrorReply:
    return ErrorReply(429, bounded(message), OVERLOADED, code="overloaded", headers=_retry_after(retry_after_s))


def limited(message: str, retry_after_s: float | None) -> ErrorReply:
    """Return the reply to a request over its client's limit; `retry_after_s` None means that a retry cannot help."""
    # OpenAI's clients retry automatically unless told not to.
    headers = {"x-should-retry": "false"} if retry_after_s is None else _retry_after(retry_after_s)
    return ErrorReply(429, bounded(message), OVERLOADED, code="rate_limit_exceeded", headers=headers)


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def bounded(message: str) -> str:
    message = message.strip()
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"
