"""Bodies: what is accepted, and how each error names its field."""

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from peagle.api.body import parse_object, validate
from peagle.api.bounds.field_path import spell
from peagle.api.bounds.json_text import MAX_ITEMS
from peagle.errors import RequestError, TooLargeError

DEPTH = 8


class Part(BaseModel):
    kind: Literal["text"]
    text: str


class Message(BaseModel):
    role: str
    content: str | list[Part]


class Chat(BaseModel):
    messages: list[Message]
    limit: int | None = Field(default=None, ge=0)
    n: int = 1


def mistake(data: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validate(Chat, data)
    return caught.value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"a": 1}}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": [{"b": -1e999}]}',
        b'{"a": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 9223372036854775808}',
        b'{"a": [[-9223372036854775809]]}',
        '{"a": 1}'.encode("utf-16"),
        b"[]",
        b"null",
        b'"text"',
    ],
)
def test_what_is_no_json_object_is_the_clients_mistake(raw: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(raw, DEPTH)
    assert caught.value.code == "invalid_json"
    assert caught.value.http_status == 400


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_nesting_is_counted_exactly() -> None:
    assert parse_object(nested(DEPTH), DEPTH)
    with pytest.raises(RequestError, match="deeper than 8 levels"):
        parse_object(nested(DEPTH + 1), DEPTH)


def test_nesting_that_would_exhaust_a_recursive_parser_is_refused() -> None:
    with pytest.raises(RequestError):
        parse_object(nested(1_000_000), 192)


def test_a_valid_body_arrives_unchanged() -> None:
    body = {"text": "é\u2028\U0001f600", "empty": {}, "numbers": [1, -2.5, 2**60], "none": None}
    assert parse_object(json.dumps(body).encode(), DEPTH) == body


def test_the_last_of_two_equal_keys_counts() -> None:
    assert parse_object(b'{"a": 1, "a": 2}', DEPTH) == {"a": 2}


def test_more_values_than_any_prompt_has_are_refused() -> None:
    with pytest.raises(TooLargeError, match="more than 1048576 values"):
        parse_object(b'{"prompt": [' + b"-1," * MAX_ITEMS + b"-1]}", DEPTH)


def test_of_countless_problems_the_field_and_their_number_are_named() -> None:
    class Prompt(BaseModel):
        model: str
        prompt: list[Annotated[int, Field(ge=0)]] | str

    with pytest.raises(RequestError, match=r"prompt: its values have the wrong type \(100001 problems\)") as refused:
        validate(Prompt, {"model": "m", "prompt": [-1] * 100_000})
    assert refused.value.param == "prompt"


def say(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


@pytest.mark.parametrize(
    ("data", "param", "code", "said"),
    [
        ({}, "messages", "missing_required_parameter", "messages is required."),
        ({"messages": [], "limit": "many"}, "limit", None, "valid integer"),
        ({"messages": [], "suffix": "end"}, "suffix", "unsupported_parameter", ""),
        # Inside a union, the error has the client's field name, without the branch.
        (say([{"kind": "image", "text": "x"}]), "messages[0].content[0].kind", None, ""),
        (say([{"kind": "text"}]), "messages[0].content[0].text", "missing_required_parameter", ""),
        (say({"text": "x"}), "messages[0].content", None, ""),
    ],
)
def test_a_mistake_is_named(data: dict[str, Any], param: str, code: str | None, said: str) -> None:
    error = mistake(data)
    assert (error.param, error.code) == (param, code)
    assert said in error.message


def test_a_list_that_is_too_long_is_told_so_and_not_that_it_is_no_string() -> None:
    class Stops(BaseModel):
        stop: str | Annotated[list[str], Field(max_length=2)]

    with pytest.raises(RequestError, match="at most 2 items") as caught:
        validate(Stops, {"stop": ["a", "b", "c"]})
    assert caught.value.param == "stop"


@pytest.mark.parametrize("extra", [{"suffix": None}, {"suffix": ""}, {"best_of": 1}, {"n": 3, "best_of": 3}])
def test_an_unsupported_field_that_asks_for_nothing_is_accepted(extra: dict[str, Any]) -> None:
    validate(Chat, {"messages": [], **extra})


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"])
def test_what_the_engine_takes_for_its_own_is_not_taken_from_a_client(name: str) -> None:
    error = mistake({"messages": [], "vllm_xargs": {name: "x"}})
    assert (error.param, error.code) == (f"vllm_xargs.{name}", "unsupported_parameter")
    validate(Chat, {"messages": [], "vllm_xargs": {"of_its_own": 1}})


def test_one_answer_by_default_is_the_best_of_one() -> None:
    class Completion(BaseModel):
        n: int | None = 1

    validate(Completion, {"n": None, "best_of": 1})
    with pytest.raises(RequestError, match="best_of"):
        validate(Completion, {"n": None, "best_of": 2})


def test_a_validator_that_trips_over_a_type_is_the_clients_mistake() -> None:
    class Trips(BaseModel):
        tools: list[str]

        def __init__(self, **data: Any) -> None:
            super().__init__(**data)

        @classmethod
        def model_validate(cls, obj: Any, **_: Any) -> "Trips":  # type: ignore[override]
            return cls(tools=list(obj["tools"]))

    with pytest.raises(RequestError, match="wrong type"):
        validate(Trips, {"tools": 5})


def test_paths_are_spelled_as_in_code() -> None:
    assert spell(("messages", 0, "content", 1, "text")) == "messages[0].content[1].text"
    assert spell(()) == ""
