"""Every exception becomes OpenAI's error object, and a client error is a 4xx wherever it was detected."""

import json
import pickle
from typing import Any

import grpc
import pytest
from ray.exceptions import ActorDiedError, RayTaskError
from ray.serve.exceptions import BackPressureError
from starlette.exceptions import HTTPException
from vllm.exceptions import QueueOverflowError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from peagle.api.openai_errors import Asked, describe, from_engine, is_lost_replica, is_not_reached, told
from peagle.api.reply import MAX_MESSAGE_CHARS, from_status
from peagle.errors import (
    EngineGoneError,
    EngineStalledError,
    NoReplicaError,
    NotFoundError,
    OverloadedError,
    ReplicaLostError,
    RequestError,
    TooLargeError,
)

ASKED = Asked("prompt")


def remote(cause: Exception) -> RayTaskError:
    """Return `cause` as it arrives from a replica."""
    error = RayTaskError("chat", "Traceback ...", cause)
    return error.as_instanceof_cause()


def call_that_ended(code: grpc.StatusCode, details: str | None = None) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (RequestError("no", param="n"), 400, "invalid_request_error", None),
        (NotFoundError("no", code="model_not_found"), 404, "invalid_request_error", "model_not_found"),
        (TooLargeError("no"), 413, "invalid_request_error", None),
        (OverloadedError("busy", 2.0), 429, "rate_limit_error", "overloaded"),
        (BackPressureError(5, 4), 429, "rate_limit_error", "overloaded"),
        (remote(BackPressureError(5, 4)), 429, "rate_limit_error", "overloaded"),
        (ReplicaLostError("gone"), 502, "server_error", None),
        (ActorDiedError(), 502, "server_error", None),
        (call_that_ended(grpc.StatusCode.CANCELLED), 502, "server_error", None),
        (TimeoutError(), 504, "server_error", "timeout"),
        (HTTPException(415, "json please"), 415, "invalid_request_error", None),
        (remote(ValueError("top_p")), 400, "invalid_request_error", None),
        (remote(TypeError("int expected")), 400, "invalid_request_error", None),
        (remote(OverflowError("too big")), 400, "invalid_request_error", None),
        (remote(NotImplementedError("no")), 400, "invalid_request_error", None),
        (remote(RuntimeError("secret")), 500, "server_error", None),
        (ValueError("secret"), 500, "server_error", None),
        (RuntimeError("secret"), 500, "server_error", None),
        (KeyError("secret"), 500, "server_error", None),
    ],
)
def test_status_type_and_code(error: Exception, status: int, kind: str, code: str | None) -> None:
    reply = describe(error)
    assert (reply.status, reply.kind, reply.code) == (status, kind, code)
    assert set(reply.body()["error"]) == {"message", "type", "param", "code"}
    assert "secret" not in json.dumps(reply.body())


class OfEngineError(Exception):
    """Can be pickled, but not unpickled from its arguments."""

    def __init__(self) -> None:
        super().__init__("secret")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("top_p"), 400),
        (VLLMValidationError("n must be at least 1", parameter="n", value=0), 400),
        (OverflowError("too big"), 400),
        (RuntimeError("boom"), 500),
        (OfEngineError(), 500),
        (QueueOverflowError(), 429),
        (OverloadedError("busy", 2.0), 429),
        (ReplicaLostError("gone"), 502),
        (EngineDeadError(), 502),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_replica_raises_is_told_alike_whichever_way_it_comes(error: Exception, status: int) -> None:
    by_grpc = pickle.loads(pickle.dumps(told(error)))
    assert describe(by_grpc) == describe(remote(told(error)))
    assert describe(by_grpc).status == status
    assert "secret" not in describe(by_grpc).message


def test_the_field_that_the_engine_blames_is_told_once() -> None:
    reply = describe(told(VLLMValidationError("n must be at least 1", parameter="n", value=0)))
    assert (reply.message, reply.param) == ("n must be at least 1", "n")


def test_overload_says_when_to_come_back() -> None:
    assert describe(OverloadedError("busy", 2.1)).headers["Retry-After"] == "3"
    assert describe(BackPressureError(5, 4), retry_after_s=7).headers["Retry-After"] == "7"
    assert describe(BackPressureError(5, 4, 429, 9.0), retry_after_s=7).headers["Retry-After"] == "9"


REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Connection refused"


@pytest.mark.parametrize(
    ("error", "unreached"),
    [
        (call_that_ended(grpc.StatusCode.UNAVAILABLE, REFUSED), True),
        (call_that_ended(grpc.StatusCode.UNAVAILABLE, "Socket closed"), False),
        (remote(EngineGoneError("gone")), True),
        (remote(EngineStalledError("silent")), False),
        (remote(EngineDeadError()), False),
    ],
)
def test_a_request_that_a_lost_replica_never_had_has_no_part_in_its_end(error: Exception, unreached: bool) -> None:
    assert is_lost_replica(error)
    assert is_not_reached(error) is unreached


@pytest.mark.parametrize(
    "error",
    [
        NoReplicaError("none"),
        remote(EngineGoneError("gone")),
        remote(EngineStalledError("silent")),
        call_that_ended(grpc.StatusCode.UNAVAILABLE, REFUSED),
    ],
)
def test_where_no_replica_is_a_client_is_told_when_to_come_back(error: Exception) -> None:
    reply = describe(error)
    assert (reply.status, reply.code) == (503, "model_unavailable")
    assert int(reply.headers["Retry-After"]) > 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 1024 tokens. However, you requested 4 output tokens",
        "The decoder prompt (length 9) is longer than the maximum model length of 8.",
        "Input length (9) exceeds model's maximum context length (8).",
    ],
)
def test_a_prompt_that_is_too_long_has_openais_code(message: str) -> None:
    reply = from_engine({"message": message, "code": 400, "param": "input_tokens"}, Asked("messages")).reply
    assert (reply.status, reply.code, reply.param) == (400, "context_length_exceeded", "messages")


@pytest.mark.parametrize(
    ("said", "asked", "status", "param", "message"),
    [
        ({"message": "n must be at least 1", "param": "n"}, ASKED, 400, "n", "n must be at least 1"),
        ({"message": "busy", "code": 503}, ASKED, 429, None, "busy"),
        # A field named only in the message is found.
        ({"message": "n must be at least 1, got 0."}, ASKED, 400, "n", "n must be at least 1, got 0."),
        ({"message": "stop cannot contain an empty string."}, ASKED, 400, "stop", "stop cannot contain"),
        ({"message": "You must pass at least one prompt"}, ASKED, 400, None, "You must pass"),
        # A value quoted by the engine is not repeated.
        ({"message": "top_p must be 1. (parameter=top_p, value=2.0)"}, ASKED, 400, "top_p", "top_p must be 1."),
        # A schema that the engine fails on is a client error that names its field.
        ({"message": "Internal", "code": 500}, Asked("messages", "response_format"), 400, "response_format", ""),
        (
            {"message": 'Failed to transform json schema: [00:57:02] <path>:4944: Unsupported type "banana"'},
            Asked("input", "text.format"),
            400,
            "text.format",
            'text.format: Failed to transform json schema: Unsupported type "banana"',
        ),
        (
            {"message": "max_completion_tokens must be at least 1.", "param": "max_completion_tokens"},
            Asked("input", fields={"max_completion_tokens": "max_output_tokens"}),
            400,
            "max_output_tokens",
            "max_output_tokens must be at least 1.",
        ),
    ],
)
def test_what_the_engine_says_is_told_of_the_field_that_its_client_wrote(
    said: dict[str, Any], asked: Asked, status: int, param: str | None, message: str
) -> None:
    reply = from_engine({"code": 400, **said}, asked).reply
    assert (reply.status, reply.param) == (status, param)
    assert reply.kind == ("rate_limit_error" if status == 429 else "invalid_request_error")
    assert message in reply.message
    assert "(parameter" not in reply.message


def test_the_engines_own_failure_keeps_its_reason() -> None:
    reply = from_engine({"message": "CUDA error in worker 3", "code": 500}, ASKED).reply
    assert reply.status == 500
    assert "CUDA" not in reply.message


@pytest.mark.parametrize("constraint", ["response_format", "structured_outputs", None])
def test_a_refused_grammar_is_named_by_the_field_that_it_came_from(constraint: str | None) -> None:
    info = {"message": "The request's grammar took longer", "code": 400, "param": "structured_outputs"}
    assert from_engine(info, Asked("messages", constraint)).reply.param == (constraint or "tools")


def test_an_unprocessable_entity_is_an_invalid_request() -> None:
    assert from_status(422, "image").status == 400


def test_messages_are_bounded() -> None:
    assert len(from_status(400, "x" * 10_000).message) == MAX_MESSAGE_CHARS


def test_an_exception_of_a_replica_names_no_files() -> None:
    assert describe(remote(ValueError("see /usr/lib/python3/site.py for it"))).message == "see <path> for it"
    assert describe(remote(ValueError("not 1/2, nor https://a.test/b/c"))).message == "not 1/2, nor https://a.test/b/c"


def test_only_a_lost_replica_is_worth_another_try() -> None:
    assert is_lost_replica(ActorDiedError())
    assert is_lost_replica(remote(ActorDiedError()))
    assert is_lost_replica(call_that_ended(grpc.StatusCode.UNAVAILABLE))
    assert not is_lost_replica(call_that_ended(grpc.StatusCode.RESOURCE_EXHAUSTED))
    assert not is_lost_replica(remote(RuntimeError("boom")))
    assert not is_lost_replica(TimeoutError())
    assert not is_lost_replica(NoReplicaError("none"))
