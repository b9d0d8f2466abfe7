"""Malformed messages are refused with the field that the client wrote."""

from typing import Any

import pytest
from vllm.entrypoints.chat_utils import MM_PARSER_MAP

from peagle.api.bounds.message_shape import PART_TYPES, check_messages
from peagle.errors import RequestError


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def call(**function: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.mark.parametrize(
    ("message", "param", "said"),
    [
        (5, "messages[0]", "not 5"),
        ({"role": 5, "content": "x"}, "messages[0].role", "not 5"),
        (user(None), "messages[0].content", "must be text or a list of content parts, not null"),
        (user(5), "messages[0].content", "must be text or a list of content parts, not 5"),
        (user({"a": 1}), "messages[0].content", "not {'a': 1}"),
        (user([5]), "messages[0].content[0]", "not 5"),
        (user([{"type": "nothing"}]), "messages[0].content[0].type", "use text, image_url"),
        (user([{"type": ["x"]}]), "messages[0].content[0].type", "use text"),
        (user(["x", {"type": "text"}]), "messages[0].content[1].text", "must be text, not null"),
        ({"role": "tool", "content": None}, "messages[0].content", "not null"),
        ({"role": "assistant", "content": 5}, "messages[0].content", "not 5"),
        ({"role": "assistant", "tool_calls": 5}, "messages[0].tool_calls", "must be a list of tool calls, not 5"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0].function", "not null"),
        (call(name=5, arguments="{}"), "messages[0].tool_calls[0].function.name", "must be text, not 5"),
        (call(name="f", arguments={}), "messages[0].tool_calls[0].function.arguments", "must be text, not {}"),
    ],
)
def test_what_is_wrong_in_a_message_is_named(message: Any, param: str, said: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_messages({"messages": [message]})
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")
    assert said in refused.value.message


@pytest.mark.parametrize(
    "message",
    [
        user("x"),
        user(["x", {"type": "text", "text": "y"}, {"image_url": "z"}]),
        {"role": "user"},
        {"role": "assistant", "content": None},
        call(name="f", arguments="{}"),
        {"role": "robot", "content": "x"},
    ],
)
def test_what_vllm_takes_passes(message: Any) -> None:
    check_messages({"messages": [message]})


def test_the_content_parts_are_those_of_the_installed_vllm() -> None:
    assert {*PART_TYPES} == MM_PARSER_MAP.keys()
