"""Requests of the Responses and Messages APIs: checked here, read by vLLM's own handlers in a replica."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from peagle.api.body import validate
from peagle.api.bounds.field_path import spell
from peagle.api.bounds.message_shape import check_messages
from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG, take_depth_max
from peagle.errors import RequestError

_STATELESS = "no answer is kept here; send the conversation so far in input"
# What of these APIs would change the answer and vLLM ignores, or cannot do where replicas share nothing.
_UNSUPPORTED_RESPONSE: Mapping[str, str] = {
    "background": "ask for a stream, which may take as long",
    "conversation": _STATELESS,
    "previous_response_id": _STATELESS,
    "prompt": "prompt templates are kept nowhere here; send instructions and input",
}
_UNSUPPORTED_MESSAGE: Mapping[str, str] = {
    "container": "this server runs no code",
    "mcp_servers": "this server calls no tools; call them, and send their results",
}
# Types of tools that the client calls.
_RESPONSE_TOOLS = ("function", "namespace")
_MESSAGE_TOOLS = ("custom",)


class RelayedRequest(BaseModel):
    """A request as plain values, which travel: pydantic's lazy lists in vLLM's own models do not.

    It has the names by which Ray's server and dispatch read a chat.

    Attributes:
        fields: The body.
        constraint: The field that constrains the output's text, if any does.
    """

    model: str | None
    stream: bool
    fields: dict[str, Any]
    constraint: str | None
    request_id: str = ""

    @property
    def messages(self) -> Sequence[Any]:
        """What the model reads, in order."""
        first = self.fields.get("instructions") or self.fields.get("system")
        turns = self.fields.get("messages", self.fields.get("input"))
        turns = [{"role": "user", "content": turns}] if isinstance(turns, str) else turns or []
        return [{"role": "system", "content": first}, *turns] if first else turns

    @property
    def tools(self) -> Any:
        """What the model is told that it may call."""
        return self.fields.get("tools")

    @property
    def service_tier(self) -> Any:
        """OpenAI's class of service, where it is asked for."""
        return self.fields.get("service_tier")

    @property
    def max_tokens(self) -> int | None:
        """The most tokens that the answer may have."""
        most: int | None = self.fields.get("max_tokens") or self.fields.get("max_output_tokens")
        return most


def to_response(data: dict[str, Any]) -> RelayedRequest:
    """Make a request of the Responses API of a parsed body; raise what `validate` does."""
    _refuse(data, _UNSUPPORTED_RESPONSE, _RESPONSE_TOOLS)
    check_messages(data)
    return _relayed(ResponsesRequest, data, "text")


def to_message(data: dict[str, Any]) -> RelayedRequest:
    """Make a request of the Messages API of a parsed body; raise what `to_response` does."""
    _refuse(data, _UNSUPPORTED_MESSAGE, _MESSAGE_TOOLS)
    return _relayed(AnthropicMessagesRequest, data, "output_config")


def to_count(data: dict[str, Any]) -> RelayedRequest:
    """Make a request to count a message's tokens of a parsed body; raise what `to_response` does."""
    _refuse(data, _UNSUPPORTED_MESSAGE, _MESSAGE_TOOLS)
    return _relayed(AnthropicCountTokensRequest, {**data, "stream": False}, "output_config")


def _relayed(model: type[BaseModel], data: dict[str, Any], format_field: str) -> RelayedRequest:
    depth_max = take_depth_max(data)
    # Where one model is served, naming it is optional. Validators write into what they are given.
    validate(model, {"model": "any", **data})
    if depth_max is not None:
        data["vllm_xargs"] = {**(data.get("vllm_xargs") or {}), DEPTH_MAX_ARG: depth_max}
    wanted = (data.get(format_field) or {}).get("format") or {}
    constraint = f"{format_field}.format" if wanted.get("type", "text") != "text" else None
    if data.get("structured_outputs"):
        constraint = "structured_outputs"
    return RelayedRequest(model=data.get("model"), stream=bool(data.get("stream")), fields=data, constraint=constraint)


def _refuse(data: Mapping[str, Any], unsupported: Mapping[str, str], tools: Sequence[str]) -> None:
    for field, instead in unsupported.items():
        if data.get(field):
            raise RequestError(f"{field} is not supported: {instead}.", param=field, code="unsupported_parameter")
    listed = data.get("tools")
    for index, tool in enumerate(listed if isinstance(listed, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in tools:
            place, known = spell(("tools", index, "type")), " or ".join(tools)
            raise RequestError(
                f"{place}: there is no {kind!r} here; tools of type {known} are taken, which the client calls.",
                param=place,
                code="unsupported_parameter",
            )
