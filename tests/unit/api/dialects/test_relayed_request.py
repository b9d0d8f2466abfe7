"""Requests of the Responses and Messages APIs, on their way to a replica."""

import pickle
from typing import Any

import pytest

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from peagle.api.dialects.relayed_request import to_count, to_message, to_response
from peagle.errors import RequestError
from peagle.serve.routing.route_request import route_request

PARTS = [{"type": "input_text", "text": "import os"}]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "done"}
TURN = {"role": "user", "content": "import os"}
MESSAGE: dict[str, Any] = {"max_tokens": 4, "messages": [TURN]}


@pytest.mark.parametrize(
    "data",
    [
        {"input": "import os"},
        {
            "input": [{"role": "user", "content": PARTS}, {"role": "assistant", "content": "x"}],
            "instructions": "Write.",
        },
        {"input": [TURN, CALL, RESULT], "tools": [TOOL], "tool_choice": "auto", "stream": True, "store": True},
    ],
)
def test_a_response_travels_as_it_was_written(data: dict[str, Any]) -> None:
    request = to_response({**data})
    assert request.fields == data
    assert pickle.loads(pickle.dumps(request)) == request
    assert (request.model, request.stream) == (None, bool(data.get("stream")))


def test_dispatch_reads_it_as_it_does_a_chat() -> None:
    long = "x" * 4000
    response = to_response({"input": long, "instructions": "Write.", "max_output_tokens": 9})
    message = to_message({"messages": [{"role": "user", "content": long}], "system": "Write.", "max_tokens": 9})
    for request in (response, message):
        routed = route_request("r", request, "", 300.0)
        assert routed.prompt_tokens > 900
        assert routed.output_tokens == 9
        assert routed.affinity_key is not None


@pytest.mark.parametrize(
    ("data", "constraint"),
    [
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({}, None),
    ],
)
def test_what_constrains_the_output_is_known(data: dict[str, Any], constraint: str | None) -> None:
    assert to_response({"input": "x", **data}).constraint == constraint


def test_a_bound_on_drafts_travels_with_it() -> None:
    for request in (
        to_response({"input": "x", "speculation": {"depth_max": 2}}),
        to_message({**MESSAGE, "speculation": {"depth_max": 2}}),
    ):
        assert request.fields["vllm_xargs"] == {DEPTH_MAX_ARG: 2}


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": {"id": "c"}}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "nothing"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": 5}, "input"),
        ({"kv_transfer_params": {"a": 1}}, "kv_transfer_params"),
        ({"vllm_xargs": {DEPTH_MAX_ARG: 1}}, f"vllm_xargs.{DEPTH_MAX_ARG}"),
        ({"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_a_response_cannot_have_is_named(data: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as refused:
        to_response({"input": "x", **data})
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "nothing"}]}]}, "messages[0].content[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    ],
)
def test_what_a_message_cannot_have_is_named(data: dict[str, Any], param: str) -> None:
    for make in (to_message, to_count):
        with pytest.raises(RequestError) as refused:
            make({**MESSAGE, **data})
        assert refused.value.param == param


def test_a_tool_of_a_message_may_say_that_it_is_the_clients() -> None:
    tool = {"name": "f", "input_schema": {"type": "object"}}
    assert to_message({**MESSAGE, "tools": [tool, {**tool, "type": "custom"}]}).fields["tools"][1]["type"] == "custom"
