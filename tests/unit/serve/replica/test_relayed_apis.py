"""Replies of vLLM's handlers of other APIs: whole answers, events, and errors in the ingress's form."""

import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import ErrorResponse
from starlette.responses import JSONResponse
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.serve.engine.serving import BaseServing
from vllm.exceptions import GenerationError, VLLMValidationError

from peagle.api.dialects.pooled_request import PooledReply, PooledRequest, to_embeddings, to_rerank, to_score
from peagle.api.dialects.relayed_request import RelayedRequest, to_message, to_response
from peagle.errors import RequestError
from peagle.serve.replica.relayed_apis import ask_messages, ask_pooled, ask_responses

ROLE = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
TOKEN = {"index": 0, "delta": {"content": "a"}, "finish_reason": None}
END = {"index": 0, "delta": {"content": ""}, "finish_reason": "length"}
ERROR = 'data: {"error": {"message": "too hot", "type": "BadRequestError", "param": "temperature", "code": 400}}\n\n'
DONE = "data: [DONE]\n\n"


def chunk(*choices: Any, **usage: int) -> str:
    body = {"id": "chatcmpl-r", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return f"data: {json.dumps({**body, 'usage': usage or None}, separators=(',', ':'))}\n\n"


class Messages(AnthropicServingMessages):  # type: ignore[misc]  # vLLM's types are skipped
    """vLLM's handler with fake chats."""

    def __init__(self, *chunks: str) -> None:
        self.chunks = chunks
        self.stop_reason_map = {"stop": "end_turn", "length": "max_tokens"}
        self.models = SimpleNamespace(model_name=lambda: "m")
        setattr(self, "_merge_inline_system", False)  # noqa: B010
        self.closed = False

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> Any:
        assert raw_request.headers["x-request-id"] == "r"
        return self.stream()

    async def stream(self) -> AsyncGenerator[str, None]:
        try:
            for each in self.chunks:
                yield each
        finally:
            self.closed = True


def message() -> RelayedRequest:
    request = to_message({"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True})
    return request.model_copy(update={"request_id": "r"})


async def of_message(*chunks: str) -> tuple[list[str], list[str]]:
    """Return the names of the events, and the errors."""
    handler = Messages(*chunks)
    events = [event async for event in ask_messages(handler, message(), None) if isinstance(event, str)]
    assert handler.closed
    names = [event.partition("\n")[0].removeprefix("event: ") for event in events if event.startswith("event: ")]
    return names, [event for event in events if event.startswith("data: ")]


async def test_a_message_is_named_after_its_request() -> None:
    events = ask_messages(Messages(chunk(ROLE), chunk(TOKEN)), message(), None)
    assert '"id":"msg_r"' in str(await anext(events))
    await events.aclose()


async def test_a_whole_stream_of_a_message_has_its_end() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    names, errors = await of_message(chunk(ROLE), chunk(TOKEN), chunk(END), chunk(**usage), DONE)
    assert names == [
        *("message_start", "content_block_start", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    assert errors == []


@pytest.mark.parametrize("tokens", [0, 1])
async def test_an_error_in_a_chat_is_passed_on_and_nothing_after_it(tokens: int) -> None:
    names, errors = await of_message(chunk(ROLE), *[chunk(TOKEN)] * tokens, ERROR, DONE)
    assert ("message_stop" in names, "error" in names, errors) == (False, False, [ERROR])


async def test_a_chat_that_ends_without_a_token_failed() -> None:
    names, errors = await of_message(chunk(ROLE), DONE)
    assert names == ["message_start"]
    assert json.loads(errors[0].removeprefix("data: "))["error"]["code"] == 500


class Responses:
    """The used part of vLLM's handler, with fake streams."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def create_responses(self, request: Any, raw_request: Any) -> Any:
        assert request.request_id == "resp_r"
        return self.stream()

    async def stream(self) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(type="response.created", model_dump_json=lambda by_alias: "{}")
        try:
            raise self.failure
        except GenerationError:
            # As in vLLM, which has no event for it.
            raise ValueError("no such event") from None

    def create_streaming_error_response(self, error: Exception) -> str:
        return json.dumps({"error": {"message": str(error), "code": 400}})


def response() -> RelayedRequest:
    return to_response({"input": "x", "stream": True}).model_copy(update={"request_id": "r"})


async def test_a_refusal_within_a_stream_of_a_response_is_an_error_that_the_ingress_reads() -> None:
    replies = [reply async for reply in ask_responses(Responses(VLLMValidationError("no")), response(), None)]
    assert replies == ["event: response.created\ndata: {}\n\n", 'data: {"error": {"message": "no", "code": 400}}\n\n']


async def test_a_response_that_failed_in_the_engine_is_no_mistake_of_its_client() -> None:
    with pytest.raises(GenerationError):
        _ = [reply async for reply in ask_responses(Responses(GenerationError()), response(), None)]


class Pooling(BaseServing):  # type: ignore[misc]  # vLLM's types are skipped
    """A vLLM handler that answers or fails."""

    def __init__(self, answer: Any) -> None:
        self.answer: Any = answer
        self.asked: list[tuple[Any, str]] = []

    async def __call__(self, request: Any, raw_request: Any) -> Any:
        self.asked.append((request, raw_request.headers["x-request-id"]))
        if isinstance(self.answer, Exception):
            raise self.answer
        return JSONResponse(self.answer)


def embed() -> PooledRequest:
    return to_embeddings({"input": "x"}).model_copy(update={"request_id": "r"})


async def test_a_vector_is_passed_on_as_it_was_written() -> None:
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    handler = Pooling({"data": [0.25], "usage": usage})
    (reply,) = [reply async for reply in ask_pooled(handler, embed(), None)]
    assert reply == PooledReply(usage=usage, body=JSONResponse(handler.answer).body)
    ((asked, name),) = handler.asked
    assert (asked.input, name) == ("x", "r")


async def test_what_a_model_cannot_embed_is_the_client_s_mistake() -> None:
    handler = Pooling(VLLMValidationError("no such size", parameter="dimensions"))
    (reply,) = [reply async for reply in ask_pooled(handler, embed(), None)]
    assert isinstance(reply, ErrorResponse)
    assert (reply.error.code, reply.error.message) == (400, "no such size (parameter=dimensions)")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (embed(), "makes no embeddings: use /v1/rerank or /v1/score"),
        (to_rerank({"query": "x", "documents": ["y"]}), "cannot score texts"),
        (to_score({"text_1": "x", "text_2": "y"}), "cannot score texts"),
    ],
)
async def test_a_model_that_does_something_else_says_so(request_: PooledRequest, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        await anext(ask_pooled(None, request_, None))
    assert refused.value.code == "unsupported_operation"
