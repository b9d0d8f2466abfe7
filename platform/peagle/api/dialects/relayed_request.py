"""Requests of the Responses and Messages APIs: checked here, parsed by vLLM's own handlers in a replica."""

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

_STATELESS = "this server stores no responses; send the conversation so far in input"
# Fields of these APIs that would change the answer but that vLLM ignores, or cannot support because replicas share no
# state.
_UNSUPPORTED_RESPONSE: Mapping[str, str] = {
    "background": "request a stream, which may take as long",
    "conversation": _STATELESS,
    "previous_response_id": _STATELESS,
    "prompt": "this server stores no prompt templates; send instructions and input",
}
_UNSUPPORTED_MESSAGE: Mapping[str, str] = {
    "container": "this server runs no code",
    "mcp_servers": "this server calls no tools; call them yourself and send their results",
}
# Types of tools that the client executes.
_RESPONSE_TOOLS = ("function", "namespace")
_MESSAGE_TOOLS = ("custom",)


class RelayedRequest(BaseModel):
    """A request as plain values, which can be pickled: pydantic's lazy lists in vLLM's own models cannot.

    It has the attributes of a chat that Ray's server and dispatch read.

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
        """The model's input, in order."""
        first = self.fields.get("instructions") or self.fields.get("system")
        turns = self.fields.get("messages", self.fields.get("input"))
        turns = [{"role": "user", "content": turns}] if isinstance(turns, str) else turns or []
        return [{"role": "system", "content": first}, *turns] if first else turns

    @property
    def tools(self) -> Any:
        """The tools that the model may call."""
        return self.fields.get("tools")

    @property
    def service_tier(self) -> Any:
        """OpenAI's service tier, if requested."""
        return self.fields.get("service_tier")

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of the answer."""
        most: int | None = self.fields.get("max_tokens") or self.fields.get("max_output_tokens")
        return most


def to_response(data: dict[str, Any]) -> RelayedRequest:
    """Make a request of the Responses API from a parsed body. Raises as `validate` does."""
    _refuse(data, _UNSUPPORTED_RESPONSE, _RESPONSE_TOOLS)
    check_messages(data)
    return _relayed(ResponsesRequest, data, "text")


def to_message(data: dict[str, Any]) -> RelayedRequest:
    """Make a request of the Messages API from a parsed body. Raises as `to_response` does."""
    _refuse(data, _UNSUPPORTED_MESSAGE, _MESSAGE_TOOLS)
    return _relayed(AnthropicMessagesRequest, data, "output_config")


def to_count(data: dict[str, Any]) -> RelayedRequest:
    """Make a request to count a message's tokens from a parsed body. Raises as `to_response` does."""
    _refuse(data, _UNSUPPORTED_MESSAGE, _MESSAGE_TOOLS)
    return _relayed(AnthropicCountTokensRequest, {**data, "stream": False}, "output_config")


def _relayed(model: type[BaseModel], data: dict[str, Any], format_field: str) -> RelayedRequest:
    depth_max = take_depth_max(data)
    # With one model served, naming it is optional. Validators modify their input.
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
                f"{place}: {kind!r} is not supported; use tools of type {known}, which the client calls.",
                param=place,
                code="unsupported_parameter",
            )
