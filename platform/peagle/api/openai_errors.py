"""Exceptions as errors that OpenAI's clients understand.

A client error is a 4xx, whether this process, Ray or the engine in another process detected it. Other errors are the
server's; their replies reveal no internals, which are only in the log.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from fastapi.exceptions import RequestValidationError
from ray.exceptions import RayActorError, RayTaskError
from ray.llm._internal.common.errors import VLLM_CLIENT_ERRORS, VLLM_FATAL_ERRORS
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.exceptions import HTTPException
from vllm.exceptions import GracefulHTTPError

from peagle.api.dialects.engine_words import in_our_words
from peagle.api.reply import SERVER_ERROR, ErrorReply, bounded, from_status, limited, overloaded
from peagle.errors import (
    EngineGoneError,
    EngineStalledError,
    LimitError,
    NoReplicaError,
    OverloadedError,
    PeagleError,
    ReplicaLostError,
    RequestError,
)

# Exceptions that vLLM's own server answers with 400 when they are raised while a request is prepared.
_CLIENT_CAUSED = (ValueError, TypeError, OverflowError, NotImplementedError, *VLLM_CLIENT_ERRORS)
_LOST_REPLICA = (RayActorError, ReplicaUnavailableError, EngineStalledError, EngineGoneError, *VLLM_FATAL_ERRORS)
# The replica no longer listens at the request's address; gRPC has no other sign of it.
_NOT_CONNECTED = "failed to connect"
# Status of a call that its server did not end: Serve itself handles only the first.
_LOST_CALL = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL})
# vLLM's name for output constraints, whichever field they came from.
GRAMMAR = "structured_outputs"
# If an engine is full and does not say for how long.
RETRY_AFTER_S = 1.0
# If a replica has to start first.
NO_REPLICA_RETRY_AFTER_S = 5

_TOO_LONG = re.compile(r"maximum (context|model) length")
# A message that begins with a field's name although vLLM sets none: "n must be at least 1, got 0."
_LEADING_FIELD = re.compile(r"`?([a-z][a-z_]*)`? (?:must|cannot)\b")
_OF_A_GRAMMAR = re.compile(r"\b(?:grammar|schema|regex|structural tag)\b", re.IGNORECASE)
_FILE_PATH = re.compile(r"(?<![\w.:/])/(?:[\w.\-]+/)+[\w.\-]+")


@dataclass(frozen=True, slots=True)
class Asked:
    """Fields of a request that an engine's error may refer to.

    Attributes:
        prompt_field: The field that holds the input.
        constraint: The field that constrains the output, if any.
        fields: The route's names of fields that vLLM names differently.
    """

    prompt_field: str
    constraint: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


class EngineError(PeagleError):
    """An engine's error, already as a reply."""

    def __init__(self, reply: ErrorReply) -> None:
        Exception.__init__(self, reply)
        self.reply, self.message = reply, reply.message


def describe(error: Exception, retry_after_s: float = RETRY_AFTER_S) -> ErrorReply:
    """Return the reply for `error`; `retry_after_s` applies if an overload has no time of its own."""
    match error:
        case EngineError():
            return error.reply
        case RayTaskError():
            return describe(_meant(cause_of(error)), retry_after_s)
        case RequestError():
            return ErrorReply(error.http_status, bounded(error.message), error.kind, error.param, error.code)
        case OverloadedError():
            return overloaded(error.message, error.retry_after_s)
        case LimitError():
            return limited(error.message, error.retry_after_s)
        case NoReplicaError() | EngineStalledError() | EngineGoneError():
            return unavailable(error.message)
        case PeagleError():
            return ErrorReply(error.http_status, error.message, error.kind)
        case HTTPException():
            return from_status(error.status_code, str(error.detail), headers=error.headers)
        case RequestValidationError():
            return from_status(400, "The request's path or query is not valid.")
        case TimeoutError():
            return ErrorReply(504, "The model took too long to answer.", SERVER_ERROR, code="timeout")
        case BackPressureError():
            return overloaded("Too many requests are waiting for this model.", error.retry_after_s or retry_after_s)
        case DeploymentUnavailableError():
            return unavailable("No replica of this model is running.")
        case _ if is_not_reached(error):
            return unavailable("The replica of this model was lost, and another has not started yet.")
        case _ if is_lost_replica(error):
            return describe(ReplicaLostError("The replica that served this request was lost."))
        case _:
            return from_status(500, "")


def unavailable(message: str) -> ErrorReply:
    """Return the reply for a model without a replica; starting one takes at least seconds."""
    return ErrorReply(
        503, message, SERVER_ERROR, code="model_unavailable", headers={"Retry-After": str(NO_REPLICA_RETRY_AFTER_S)}
    )


def told(error: Exception) -> Exception:
    """Return the exception to raise instead of `error`, which pickles and which the ingress understands."""
    meant = _meant(error)
    try:
        pickle.loads(pickle.dumps(meant))
    except Exception:  # an exception's own code may fail in any way
        return RuntimeError(f"{type(meant).__name__}: {meant}")
    return meant


def is_client_caused(error: Exception) -> bool:
    """Whether a replica's exception is a client error or an overload."""
    return isinstance(_meant(error), RequestError | OverloadedError)


def _meant(error: Exception) -> Exception:
    """Return the meaning of a replica's exception: vLLM's client errors are client errors here as well."""
    match error:
        case GracefulHTTPError() if error.http_status in (429, 503):
            return OverloadedError(error.message, RETRY_AFTER_S)
        case PeagleError():
            return error
        case _ if isinstance(error, _CLIENT_CAUSED):
            message = in_our_words(_FILE_PATH.sub("<path>", str(error)))
            return RequestError(message, param=getattr(error, "parameter", None))
        case _:
            return error


def cause_of(error: Exception) -> Exception:
    """Return the replica's original exception without Ray's task wrapper; gRPC passes it unwrapped."""
    while isinstance(error, RayTaskError):
        error = error.cause
    return error


def from_engine(info: Mapping[str, Any], asked: Asked) -> EngineError:
    """Translate vLLM's error, whose `code` is a status and whose `type` is a class name."""
    message = in_our_words(str(info.get("message") or ""), asked.fields)
    code = info.get("code")
    status = code if isinstance(code, int) else 500
    if status in (429, 503):
        return EngineError(overloaded(message, RETRY_AFTER_S))
    if status >= 500 and asked.constraint:
        # vLLM reports a schema or grammar that it cannot compile, or that no text satisfies, as a server error.
        message = f"The engine cannot follow {asked.constraint}: it is not supported, or no text satisfies it."
        return EngineError(from_status(400, message, param=asked.constraint))
    if status < 500 and _TOO_LONG.search(message):
        return EngineError(from_status(400, message, param=asked.prompt_field, code="context_length_exceeded"))
    if status < 500 and asked.constraint and not info.get("param") and _OF_A_GRAMMAR.search(message):
        message = f"{asked.constraint}: {message}"
        return EngineError(from_status(400, message, param=asked.constraint))
    leading = _LEADING_FIELD.match(message)
    param = info.get("param") or (leading.group(1) if leading else None)
    param = asked.fields.get(param, param) if isinstance(param, str) else None
    if param == GRAMMAR:
        param = asked.constraint or "tools"
    return EngineError(from_status(status, message, param=param))


def is_lost_replica(error: Exception) -> bool:
    """Whether the same request may succeed on another replica."""
    cause = cause_of(error)
    return isinstance(cause, _LOST_REPLICA) or (isinstance(cause, grpc.aio.AioRpcError) and cause.code() in _LOST_CALL)


def is_not_reached(error: Exception) -> bool:
    """Whether the replica was lost before the request arrived, so that the request cannot be the cause."""
    cause = cause_of(error)
    if isinstance(cause, grpc.aio.AioRpcError):
        return cause.code() is grpc.StatusCode.UNAVAILABLE and _NOT_CONNECTED in (cause.details() or "")
    return isinstance(cause, ReplicaUnavailableError | EngineGoneError)
