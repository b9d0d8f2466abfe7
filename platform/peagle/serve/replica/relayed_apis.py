"""Calls vLLM's handlers of other APIs, as Ray calls its chat handler. Importing this module imports vLLM.

The APIs are Responses, Messages, embeddings and scores. A reply is a complete answer (dict or bytes), an event of a
stream, or an error in Ray's form.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from ray.llm._internal.serve.core.configs.openai_api_models import ErrorInfo, ErrorResponse
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from starlette.requests import Request
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest, ResponsesResponse
from vllm.entrypoints.serve.engine.protocol import ErrorResponse as VLLMErrorResponse
from vllm.exceptions import GenerationError, VLLMClientError

from peagle.api.dialects.pooled_request import Kind, PooledReply, PooledRequest
from peagle.api.dialects.relayed_request import RelayedRequest
from peagle.api.dialects.stream_kinds import DONE, has_choices
from peagle.api.reply import ERROR_EVENT
from peagle.errors import RequestError

Replies = AsyncGenerator[str | dict[str, Any] | PooledReply | ErrorResponse, None]

_NO_ANSWER = f'{ERROR_EVENT}: {{"message": "The engine gave no answer.", "code": 500}}}}\n\n'
# The rest of an identifier is the request's.
_CHAT_ID, _MESSAGE_ID, _RESPONSE_ID = "chatcmpl-", "msg_", "resp_"
_NO_SCORES = "cannot score texts: only embedding models and classifiers with one label can"
_CANNOT: Mapping[Kind, str] = {
    "embeddings": "makes no embeddings: use /v1/rerank or /v1/score",
    "rerank": _NO_SCORES,
    "score": _NO_SCORES,
}


async def ask_responses(handler: Any, request: RelayedRequest, info: RawRequestInfo | None) -> Replies:
    """Answer a request of the Responses API."""
    try:
        fields = {**request.fields, "request_id": f"{_RESPONSE_ID}{request.request_id}"}
        answer = await handler.create_responses(ResponsesRequest.model_validate(fields), _http(request, info))
    except (ValueError, VLLMClientError) as error:
        yield _refusal(handler, error)
        return
    if isinstance(answer, ResponsesResponse):
        yield answer.model_dump(mode="json", by_alias=True)
    elif isinstance(answer, VLLMErrorResponse):
        yield _told(answer)
    else:
        async with aclosing(answer):
            try:
                async for event in answer:
                    yield f"event: {event.type}\ndata: {event.model_dump_json(by_alias=True)}\n\n"
            except (ValueError, VLLMClientError) as error:
                if isinstance(error.__context__, GenerationError):
                    # vLLM has no event in this API for a request that failed in the engine, and raises here.
                    raise error.__context__ from None
                yield f"data: {handler.create_streaming_error_response(error)}\n\n"


async def ask_messages(handler: Any, request: RelayedRequest, info: RawRequestInfo | None) -> Replies:
    """Answer a request of the Messages API."""
    try:
        asked = AnthropicMessagesRequest.model_validate(_with_model(handler, request.fields))
        chat = handler.to_chat_completion_request(asked, merge_inline_system=handler._merge_inline_system)
        answer = await handler.create_chat_completion(chat, _http(request, info))
    except (ValueError, VLLMClientError) as error:
        yield _refusal(handler, error)
        return
    if isinstance(answer, ChatCompletionResponse):
        message = handler.messages_full_converter(answer)
        message.id = message.id.replace(_CHAT_ID, _MESSAGE_ID)
        yield message.model_dump(mode="json", exclude_none=True)
    elif isinstance(answer, VLLMErrorResponse):
        yield _told(answer)
    else:
        chunks = _Chunks(answer)
        async with aclosing(answer):
            async for event in handler.message_stream_converter(chunks.up_to_error()):
                yield event.replace(_CHAT_ID, _MESSAGE_ID, 1) if event.startswith("event: message_start") else event
        if chunks.error is not None:
            yield chunks.error


async def ask_count(handler: Any, request: RelayedRequest, info: RawRequestInfo | None) -> Replies:
    """Count the tokens of a message."""
    try:
        asked = AnthropicCountTokensRequest.model_validate(_with_model(handler, request.fields))
        answer = await handler.count_tokens(asked, _http(request, info))
    except (ValueError, VLLMClientError) as error:
        yield _refusal(handler, error)
        return
    yield _told(answer) if isinstance(answer, VLLMErrorResponse) else answer.model_dump(exclude_none=True)


async def ask_pooled(handler: Any, request: PooledRequest, info: RawRequestInfo | None) -> Replies:
    """Embed or score texts; `handler` is None if the model cannot."""
    if handler is None:
        raise RequestError(f"The model {_CANNOT[request.kind]}.", param="model", code="unsupported_operation")
    try:
        answer = await handler(request.read(), _http(request, info))
    except (ValueError, VLLMClientError) as error:
        yield _refusal(handler, error)
        return
    yield PooledReply.of(answer.body)


class _Chunks:
    """A chat's stream for vLLM's converter, without errors, which the converter cannot read."""

    def __init__(self, chunks: AsyncGenerator[str, None]) -> None:
        self._chunks = chunks
        self.error: str | None = None

    async def up_to_error(self) -> AsyncGenerator[str, None]:
        """Yield the chunks of an answer; keep an error that replaces the rest."""
        spoken = 0
        async for chunk in self._chunks:
            spoken += has_choices(chunk)
            if chunk.startswith(ERROR_EVENT):
                self.error = chunk
            elif chunk == DONE and spoken <= 1:  # the first chunk has only the role
                self.error = _NO_ANSWER
            if self.error is not None:
                return
            yield chunk


def _with_model(handler: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": handler.models.model_name(), **fields}


def _http(request: RelayedRequest | PooledRequest, info: RawRequestInfo | None) -> Request:
    """Return the HTTP request from which vLLM reads a request's id and trace."""
    headers = {**(info.headers if info is not None else {}), "x-request-id": request.request_id}
    http: Request = RawRequestInfo(headers=headers).to_starlette_request()
    return http


def _refusal(handler: Any, error: Exception) -> ErrorResponse:
    return _told(handler.create_error_response(error))


def _told(error: VLLMErrorResponse) -> ErrorResponse:
    return ErrorResponse(error=ErrorInfo(**error.error.model_dump()))
