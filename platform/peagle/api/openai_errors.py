"""Any exception, as an error that OpenAI's clients understand.

A client's mistake is a 4xx whoever noticed it: this process, Ray, or the engine in another process. What is left is
ours, and says nothing about our insides; the log has the rest.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from fastapi.exceptions import RequestValidationError
from ray.exceptions import RayActorError, RayTaskError
from ray.llm._internal.common.errors import VLLM_CLIENT_ERRORS, VLLM_FATAL_ERRORS
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.exceptions import HTTPException
from vllm.exceptions import GracefulHTTPError

from peagle.api.reply import SERVER_ERROR, ErrorReply, bounded, from_status, overloaded
from peagle.errors import OverloadedError, PeagleError, ReplicaLostError, RequestError

# What vLLM's own server answers with 400 when it is raised while a request is prepared.
_CLIENT_CAUSED = (ValueError, TypeError, OverflowError, NotImplementedError, *VLLM_CLIENT_ERRORS)
_LOST_REPLICA = (RayActorError, ReplicaUnavailableError, *VLLM_FATAL_ERRORS)
# How a call ends that its server did not: Serve itself knows only the first of them.
_LOST_CALL = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL})
# vLLM's name for what constrains an output, whichever field that came from.
GRAMMAR = "structured_outputs"
# Where an engine is full and does not say for how long.
RETRY_AFTER_S = 1.0

_TOO_LONG = re.compile(r"maximum (context|model) length")
# vLLM repeats the field, and quotes its value whole, at the end of a message.
_REPEATED = re.compile(r" \(parameter=.*\)$", re.DOTALL)
# A message that begins with a field's name, where vLLM names none: "n must be at least 1, got 0."
_LEADING_FIELD = re.compile(r"`?([a-z][a-z_]*)`? (?:must|cannot)\b")
_FILE_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.\-]+/)+[\w.\-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """What an engine's error may be about: the field that holds the input, and the one that constrains the output."""

    prompt_field: str
    constraint: str | None = None


class EngineError(PeagleError):
    """What an engine answered instead of text, already as a reply."""

    def __init__(self, reply: ErrorReply) -> None:
        Exception.__init__(self, reply)
        self.reply, self.message = reply, reply.message


def describe(error: Exception, retry_after_s: float = RETRY_AFTER_S) -> ErrorReply:
    """Say what `error` is to the client; `retry_after_s` is used where an overload names no time of its own."""
    match error:
        case EngineError():
            return error.reply
        case RayTaskError():
            return describe(_meant(cause_of(error)), retry_after_s)
        case RequestError():
            return ErrorReply(error.http_status, bounded(error.message), error.kind, error.param, error.code)
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
        case _ if is_lost_replica(error):
            return describe(ReplicaLostError("The replica that served this request was lost."))
        case _:
            return from_status(500, "")


def told(error: Exception) -> Exception:
    """What a replica should raise instead of `error`, so that it survives the way and the ingress understands it."""
    meant = _meant(error)
    try:
        pickle.loads(pickle.dumps(meant))
    except Exception:  # an exception's own code, which may fail in any way
        return RuntimeError(f"{type(meant).__name__}: {meant}")
    return meant


def _meant(error: Exception) -> Exception:
    """What an exception of a replica comes to: what vLLM blames on the client is the client's mistake here, too."""
    match error:
        case GracefulHTTPError() if error.http_status in (429, 503):
            return OverloadedError(error.message, RETRY_AFTER_S)
        case PeagleError():
            return error
        case _ if isinstance(error, _CLIENT_CAUSED):
            message = _REPEATED.sub("", _FILE_PATH.sub("<path>", str(error)))
            return RequestError(message, param=getattr(error, "parameter", None))
        case _:
            return error


def cause_of(error: Exception) -> Exception:
    """What a replica raised, without what a task of Ray's wraps it in; by gRPC it comes as it was."""
    while isinstance(error, RayTaskError):
        error = error.cause
    return error


def from_engine(info: Mapping[str, Any], asked: Asked) -> EngineError:
    """Translate vLLM's error, whose `code` is a status and whose `type` is a class name."""
    message = _REPEATED.sub("", str(info.get("message") or ""))
    code = info.get("code")
    status = code if isinstance(code, int) else 500
    if status in (429, 503):
        return EngineError(overloaded(message, RETRY_AFTER_S))
    if status >= 500 and asked.constraint:
        # vLLM reports a schema or grammar that it cannot compile, or that no text satisfies, as its own failure.
        message = f"The engine cannot follow {asked.constraint}: it is not supported, or no text satisfies it."
        return EngineError(from_status(400, message, param=asked.constraint))
    if status < 500 and _TOO_LONG.search(message):
        return EngineError(from_status(400, message, param=asked.prompt_field, code="context_length_exceeded"))
    leading = _LEADING_FIELD.match(message)
    param = info.get("param") or (leading.group(1) if leading else None)
    if param == GRAMMAR:
        param = asked.constraint or "tools"
    return EngineError(from_status(status, message, param=param))


def is_lost_replica(error: Exception) -> bool:
    """Whether the same request may succeed on another replica."""
    cause = cause_of(error)
    return isinstance(cause, _LOST_REPLICA) or (isinstance(cause, grpc.aio.AioRpcError) and cause.code() in _LOST_CALL)
