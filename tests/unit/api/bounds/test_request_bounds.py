"""Size limits of one request before it is validated, rendered or tokenized."""

import json
from typing import Any

import pytest

from peagle.api.api_settings import ApiSettings
from peagle.api.bounds.request_bounds import PROMPT_CHARS_MIN, check_request
from peagle.errors import RequestError

SETTINGS = ApiSettings()
CONTEXT = 1024


def refusal(data: dict[str, Any], context_tokens: int | None = CONTEXT, **settings: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        check_request(data, ApiSettings(**settings), context_tokens)
    assert refused.value.http_status == 400
    return refused.value


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def call(arguments: str) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


EMPTY = user("")
PART = {"type": "text", "text": ""}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
LONG = "x" * (PROMPT_CHARS_MIN + 1)


@pytest.mark.parametrize(
    ("data", "param", "code"),
    [
        (chat(*[EMPTY] * 400_000), "messages", "array_above_max_length"),
        (chat(EMPTY, user([PART] * 5000)), "messages[1].content", "array_above_max_length"),
        (chat(*[{"role": "assistant", "tool_calls": [call("{}")] * 3000}] * 2), "messages[1].tool_calls", None),
        (chat(EMPTY, tools=[TOOL] * 600), "tools", "array_above_max_length"),
        (chat(EMPTY, stop_token_ids=[1] * 300_000), "stop_token_ids", "array_above_max_length"),
        (chat(EMPTY, logit_bias=dict.fromkeys(map(str, range(300_000)), 1)), "logit_bias", "array_above_max_length"),
        ({"input": [EMPTY] * 5000}, "input", "array_above_max_length"),
        ({"input": [EMPTY, user([PART] * 5000)]}, "input[1].content", "array_above_max_length"),
        (chat(user([{"type": "tool_result", "content": [PART] * 5000}])), "messages[0].content[0].content", None),
        ({"input": "", "tools": [{"type": "namespace", "tools": [TOOL] * 600}]}, "tools[0].tools", None),
        (chat(EMPTY, bad_words=["x" * 2**14, "y"]), "bad_words", "array_above_max_length"),
        (chat(EMPTY, n=128), "n", "integer_above_max_value"),
        ({"prompt": "x", "n": 33}, "n", "integer_above_max_value"),
        ({"prompt": ["x"] * 8, "n": 5}, "n", "integer_above_max_value"),
        ({"prompt": ["x"] * 33}, "prompt", "array_above_max_length"),
        ({"prompt": [[1]] * 33}, "prompt", "array_above_max_length"),
        ({"prompt": LONG}, "prompt", "context_length_exceeded"),
        ({"prompt": [LONG[: PROMPT_CHARS_MIN // 2]] * 3}, "prompt", "context_length_exceeded"),
        ({"prompt": [1] * (PROMPT_CHARS_MIN + 1)}, "prompt", "context_length_exceeded"),
        ({"tokens": [1] * (PROMPT_CHARS_MIN + 1)}, "tokens", "context_length_exceeded"),
        (chat(user(LONG)), "messages", "context_length_exceeded"),
        ({"input": LONG}, "input", "context_length_exceeded"),
        ({"input": "", "instructions": LONG}, "instructions", "context_length_exceeded"),
        (chat(EMPTY, system=LONG), "system", "context_length_exceeded"),
        (chat(user([{"type": "tool_use", "input": {"source": LONG}}])), "messages", "context_length_exceeded"),
        (
            {"input": [{"type": "function_call", "arguments": "[" * 99 + "]" * 99}]},
            "input[0].arguments",
            "invalid_json",
        ),
        (chat(user([{"type": "text", "text": LONG}])), "messages", "context_length_exceeded"),
        (chat(EMPTY, documents=[{"text": LONG}]), "documents", "context_length_exceeded"),
        (chat(EMPTY, chat_template_kwargs={"a": [1, LONG]}), "chat_template_kwargs", "context_length_exceeded"),
        (chat(EMPTY, tools=[{"function": {"description": LONG}}]), "tools", "context_length_exceeded"),
        ({"prompt": [1] * 2000 + [-1]}, "prompt[2000]", None),
        ({"prompt": [1] * 2000 + ["x"]}, "prompt[2000]", None),
        ({"prompt": [[1], [1] * 2000 + [True]]}, "prompt[1][2000]", None),
        ({"tokens": [1] * 2000 + [None]}, "tokens[2000]", None),
        ({"tokens": [{}] * 2000}, "tokens[0]", None),
        (
            chat(EMPTY, {"role": "assistant", "tool_calls": [call("{}"), call("[" * 3000 + "]" * 3000)]}),
            "messages[1].tool_calls[1].function.arguments",
            "invalid_json",
        ),
        (
            chat({"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":' * 3000 + "1" + "}" * 3000}}),
            "messages[0].function_call.arguments",
            "invalid_json",
        ),
        (
            chat(EMPTY, response_format={"json_schema": {"schema": {"enum": [""] * 50_000}}}),
            "response_format.json_schema.schema.enum",
            "grammar_too_large",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_beyond_a_bound_is_refused_and_named(data: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(data)
    assert error.param == param
    assert code is None or error.code == code


def test_a_longer_context_takes_longer_prompts() -> None:
    data = {"prompt": "x" * 2_000_000}
    assert refusal(data).param == "prompt"
    check_request(data, SETTINGS, 131_072)
    check_request(data, SETTINGS, None)
    assert refusal(data, 131_072, max_prompt_chars=1_999_999).param == "prompt"


def test_pictures_and_sounds_are_no_characters_of_a_prompt() -> None:
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{LONG}"}}
    check_request(chat(user([picture, PART])), SETTINGS, CONTEXT)


@pytest.mark.parametrize(
    "data",
    [
        {"prompt": "def f(x):\n        return x\n" * 4000},
        {"prompt": ["x"] * 16, "n": 2},
        {"prompt": [5] * 100_000},
        {"tokens": [5] * 100_000},
        chat(*[user("What next?"), {"role": "assistant", "tool_calls": [call(json.dumps({"a": [[1]]}))]}] * 1000),
        chat(EMPTY, tools=[TOOL] * 128, n=8),
        chat({"role": "assistant", "tool_calls": [call('{"text": "' + "[" * 3000 + '"}')]}),
        chat({"role": "assistant", "tool_calls": [call("no JSON at all {")]}),
    ],
    ids=lambda value: str(value)[:50],
)
def test_usual_requests_are_within_the_bounds(data: dict[str, Any]) -> None:
    check_request(data, SETTINGS, CONTEXT)


@pytest.mark.parametrize("value", [None, 5, "x", [], {}, [5], [None], [[]], {"a": 5}, [{"a": [{}]}], True])
@pytest.mark.parametrize(
    "field",
    ["messages", "prompt", "tokens", "tools", "n", "documents", "response_format", "structured_outputs", "stop"],
)
def test_values_of_wrong_types_are_left_to_validation(field: str, value: Any) -> None:
    check_request({field: value}, SETTINGS, CONTEXT)
    check_request({"messages": [{"role": "user", "content": value, "tool_calls": value}]}, SETTINGS, CONTEXT)
    check_request({"messages": [{"tool_calls": [value, {"function": value}]}]}, SETTINGS, CONTEXT)
