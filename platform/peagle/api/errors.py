"""Any exception, as OpenAI's error object: `{"error": {"message", "type", "param", "code"}}`.

A client's mistake is a 4xx whoever noticed it: this process, Ray, or the engine in another process. What is left is
ours, and says nothing about our insides; the log has the rest.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi.exceptions import RequestValidationError
from ray.exceptions import RayActorError, RayTaskError
from ray.llm._internal.common.errors import VLLM_CLIENT_ERRORS, VLLM_FATAL_ERRORS
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from peagle.errors import OverloadedError, PeagleError, ReplicaLostError, RequestError

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
OVERLOADED = "rate_limit_error"

# Clients print messages; an engine may quote a whole prompt in one.
MAX_MESSAGE_CHARS = 1000

# What vLLM's own server answers with 400 when it is raised while a request is prepared.
_CLIENT_CAUSED = (ValueError, TypeError, OverflowError, NotImplementedError, *VLLM_CLIENT_ERRORS)
_LOST_REPLICA = (RayActorError, ReplicaUnavailableError, *VLLM_FATAL_ERRORS)

_TOO_LONG = re.compile(r"maximum (context|model) length")
_FILE_PATH = re.compile(r"(?<![\w.])/(?:[\w.\-]+/)+[\w.\-]+")


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


class EngineError(PeagleError):
    """What the engine itself answered, already as a reply."""

    def __init__(self, reply: ErrorReply) -> None:
        Exception.__init__(self, reply)
        self.reply, self.message = reply, reply.message


def describe(error: BaseException, retry_after_s: float = 1.0) -> ErrorReply:
    """Say what `error` is to the client; `retry_after_s` is used where an overload names no time of its own."""
    match error:
        case EngineError():
            return error.reply
        case RayTaskError():
            return _from_replica(error.cause, retry_after_s)
        case RequestError():
            return ErrorReply(error.http_status, _bounded(error.message), error.kind, error.param, error.code)
        case OverloadedError():
            return overloaded(error.message, error.retry_after_s)
        case PeagleError():
            return ErrorReply(error.http_status, error.message, error.kind)
        case HTTPException():
            return from_status(error.status_code, str(error.detail), headers=error.headers)
        case RequestValidationError():
            return from_status(400, "The request's path or query is not valid.")
        case TimeoutError():
            return ErrorReply(504, "The model took too long to answer.", SERVER_ERROR, code="timeout")
        case BackPressureError():
            return overloaded("Too many requests wait for this model.", error.retry_after_s or retry_after_s)
        case DeploymentUnavailableError():
            return ErrorReply(503, "No replica of this model is running.", SERVER_ERROR, code="model_unavailable")
        case _ if isinstance(error, _LOST_REPLICA):
            return describe(ReplicaLostError("The replica that served this request was lost."))
        case _:
            return ErrorReply(500, "The server failed to answer this request.", SERVER_ERROR)


def _from_replica(cause: BaseException, retry_after_s: float) -> ErrorReply:
    """An exception that left a replica: what vLLM blames on the client is the client's here, too."""
    if isinstance(cause, RayTaskError):
        return _from_replica(cause.cause, retry_after_s)
    if isinstance(cause, PeagleError) or not isinstance(cause, _CLIENT_CAUSED):
        return describe(cause, retry_after_s)
    return from_status(400, str(cause), param=getattr(cause, "parameter", None))


def from_engine(info: Mapping[str, Any], prompt_field: str | None = None) -> EngineError:
    """Translate vLLM's error, whose `code` is a status and whose `type` a class name.

    Args:
        info: vLLM's `message`, `code` and `param`.
        prompt_field: What this endpoint calls its input, for errors about the input's length.
    """
    message, param = str(info.get("message") or ""), info.get("param")
    code = info.get("code")
    status = code if isinstance(code, int) else 500
    if status in (429, 503):
        reply = overloaded(_bounded(message), 1.0)
    elif status < 500 and _TOO_LONG.search(message):
        reply = from_status(400, message, param=prompt_field, code="context_length_exceeded")
    else:
        reply = from_status(status, message, param=param)
    return EngineError(reply)


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
    return ErrorReply(status, _bounded(message), INVALID_REQUEST, param, code, headers or {})


def overloaded(message: str, retry_after_s: float) -> ErrorReply:
    seconds = max(1, math.ceil(retry_after_s))
    return ErrorReply(429, message, OVERLOADED, code="overloaded", headers={"Retry-After": str(seconds)})


def is_lost_replica(error: BaseException) -> bool:
    """Whether the same request may succeed on another replica."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(error, _LOST_REPLICA) or isinstance(cause, _LOST_REPLICA)


def _bounded(message: str) -> str:
    message = _FILE_PATH.sub("<path>", message).strip()
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"
