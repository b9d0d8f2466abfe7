"""Grammar size limits apply to every field that takes a grammar; errors name the client's field."""

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.api.api_settings import GrammarSettings
from peagle.api.bounds.grammar_bounds import check_grammars
from peagle.errors import RequestError

BOUNDS = GrammarSettings()
NAME = "get_weather"


def response_format(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def tool(schema: Any) -> dict[str, Any]:
    return {
        "tools": [{"type": "function", "function": {"name": NAME, "parameters": schema}}],
        "tool_choice": "required",
    }


def legacy_tag(schema: Any) -> dict[str, Any]:
    structure = {"begin": "<f>", "schema": schema, "end": "</f>"}
    return {"response_format": {"type": "structural_tag", "structures": [structure], "triggers": ["<f"]}}


def tag(schema: Any) -> dict[str, Any]:
    content = {"type": "json_schema", "json_schema": schema}
    inner = {"type": "tag", "begin": "<f>", "content": content, "end": "</f>"}
    return {"response_format": {"type": "structural_tag", "format": {"type": "sequence", "elements": [inner]}}}


SCHEMA_OF_TAG = ".structures[0].schema"
# Every field that takes a schema, and the schema's path in it.
WAYS: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "response format": (response_format, "response_format.json_schema.schema"),
    "tool": (tool, "tools[0].function.parameters"),
    "response's format": (
        lambda schema: {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}},
        "text.format.schema",
    ),
    "message's format": (
        lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
        "output_config.format.schema",
    ),
    "response's tool": (
        lambda schema: {"tools": [{"type": "function", "name": NAME, "parameters": schema}]},
        "tools[0].parameters",
    ),
    "tool in a namespace": (
        lambda schema: {"tools": [{"type": "namespace", "name": "n", "tools": [{"name": NAME, "parameters": schema}]}]},
        "tools[0].tools[0].parameters",
    ),
    "message's tool": (lambda schema: {"tools": [{"name": NAME, "input_schema": schema}]}, "tools[0].input_schema"),
    "legacy tag": (legacy_tag, "response_format.structures[0].schema"),
    "tag": (tag, "response_format.format.elements[0].content.json_schema"),
    "json": (lambda schema: {"structured_outputs": {"json": schema}}, "structured_outputs.json"),
    "text": (lambda schema: {"structured_outputs": {"json": json.dumps(schema)}}, "structured_outputs.json"),
    "tag in text": (
        lambda schema: {"structured_outputs": {"structural_tag": json.dumps(legacy_tag(schema)["response_format"])}},
        "structured_outputs.structural_tag.structures[0].schema",
    ),
}
every_way = pytest.mark.parametrize(("ask", "where"), WAYS.values(), ids=WAYS)


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


def nested(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def chained(links: int) -> Any:
    """A schema with a chain of `links` definitions."""
    inner = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(links)}
    return {"$defs": {**inner, f"d{links}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def widened(times: int) -> Any:
    """A schema whose expanded references have more than `16 ** times` parts."""
    inner = {f"d{i}": an_object(**{f"p{j}": {"$ref": f"#/$defs/d{i + 1}"} for j in range(16)}) for i in range(times)}
    return {"$defs": {**inner, f"d{times}": {"type": "string"}}, "$ref": "#/$defs/d0"}


# Schemas over one limit each, with the path below the schema and the message.
BEYOND: dict[str, tuple[Any, str, str]] = {
    "enum": (
        an_object(a={"enum": [f"{i:05}" for i in range(50_000)]}),
        "properties.a.enum",
        "choices of the request",
    ),
    "long enum": (an_object(a={"enum": ["x" * 100] * 600}), "properties.a.enum", "60000 characters in choices"),
    "branches": (an_object(a={"anyOf": [{"type": "null"}] * 3000}), "properties.a.anyOf", "choices of the request"),
    "constant": (an_object(a={"const": "x" * 60_000}), "properties.a.const", "60000 characters in choices"),
    "properties": (an_object(**{f"p{i}": {} for i in range(6000)}), "properties", "6000 properties"),
    "optional": (
        {"properties": {f"p{i}": {} for i in range(300)}},
        "properties",
        "300 optional properties",
    ),
    "items": ({"type": "array", "minItems": 10**9}, "minItems", "1000000000 repetitions; at most 1000000"),
    "length": (an_object(a={"maxLength": 10**9}), "properties.a.maxLength", "repetitions"),
    "pattern": (an_object(a={"pattern": "a" * 9000}), "properties.a.pattern", "9000 characters of a pattern"),
    "left out": (
        an_object(a={"pattern": "[a-z]?b*c{0,3}" * 100}),
        "properties.a.pattern",
        "pairs of optional parts",
    ),
    "repetition": (an_object(a={"pattern": "a{2000000}"}), "properties.a.pattern", "2000000 repetitions"),
    "product": (an_object(a={"pattern": "((a{200}b){200}c){200}"}), "properties.a.pattern", "each repetition written"),
    "names": ({"patternProperties": {"((a{200}b){200}c){200}": {}}}, "patternProperties", "each repetition written"),
    "groups": (an_object(a={"pattern": "(" * 100 + "a" + ")" * 100}), "properties.a.pattern", "nested groups"),
    "nesting": (nested(200), "items", "levels of nesting"),
    "chain": (chained(500), "", "levels of nesting, each $ref followed"),
    "expansion": (widened(6), "", "parts, each $ref followed"),
    "text": (an_object(a={"description": "x" * 600_000}), "properties.a", "characters of the request's grammars"),
}


@every_way
@pytest.mark.parametrize(("schema", "below", "said"), BEYOND.values(), ids=BEYOND)
def test_a_schema_beyond_a_bound_is_refused_and_named(
    ask: Callable[[Any], dict[str, Any]], where: str, schema: Any, below: str, said: str
) -> None:
    with pytest.raises(RequestError, match="at most") as refused:
        check_grammars(ask(schema), BOUNDS)
    error = refused.value
    assert (error.http_status, error.code) == (400, "grammar_too_large")
    assert error.param is not None
    # A text is also measured before it is parsed.
    assert error.param.startswith(f"{where}.{below}".rstrip(".")) or error.param == where.removesuffix(SCHEMA_OF_TAG)
    assert said in error.message


def test_the_message_names_the_field_the_size_and_the_bound() -> None:
    with pytest.raises(RequestError) as refused:
        check_grammars(response_format(an_object(a={"enum": ["x"] * 50_000})), BOUNDS)
    assert refused.value.param == "response_format.json_schema.schema.properties.a.enum"
    assert refused.value.message == (
        "response_format.json_schema.schema.properties.a.enum: 50000 choices of the request's grammars; "
        "at most 2500 are allowed here."
    )


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ({"choice": ["x"] * 3000}, "3000 choices"),
        ({"choice": ["x" * 60_000]}, "60000 characters in choices"),
        ({"regex": "a" * 9000}, "9000 characters of a pattern"),
        ({"regex": "(a{2000}b){2000}"}, "each repetition written out"),
        ({"regex": "a{" + "9" * 5000 + "}"}, "repetitions"),
        ({"grammar": 'root ::= "a" ' * 10_000}, "characters of a grammar"),
        ({"grammar": 'root ::= "a"' + ' | "b"' * 3000}, "3000 choices"),
        ({"grammar": 'root ::= "a"{5000000}'}, "5000000 repetitions"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_schema_has_bounds_too(outputs: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        check_grammars({"structured_outputs": outputs}, BOUNDS)
    assert refused.value.param == f"structured_outputs.{next(iter(outputs))}"


def test_the_bounds_are_of_all_tools_together() -> None:
    tools = tool(an_object(**{f"p{i}": {} for i in range(200)}))["tools"]
    check_grammars({"tools": tools * 25}, BOUNDS)
    with pytest.raises(RequestError, match="5200 properties") as refused:
        check_grammars({"tools": tools * 26}, BOUNDS)
    assert refused.value.param == "tools[25].function.parameters.properties"


@every_way
def test_what_applications_ask_for_is_within_the_bounds(ask: Callable[[Any], dict[str, Any]], where: str) -> None:
    """Including OpenAI's own limits: 5,000 properties, 1,000 values of 15,000 characters, 10 levels."""
    tree = {
        "$defs": {
            "node": an_object(value={"type": "string"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
        },
        "$ref": "#/$defs/node",
    }
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(10):
        deep = an_object(a=deep)
    for schema in (
        tree,
        deep,
        {"$ref": "#"},
        chained(40),
        an_object(value={"$ref": "#"}),
        an_object(**{f"p{i}": {"type": "string"} for i in range(5000)}),
        an_object(a={"enum": [f"{i:015}" for i in range(1000)]}),
        an_object(date={"pattern": r"^\d{4}-\d{2}-\d{2}$"}, text={"maxLength": 65_535}, many={"maxItems": 1000}),
        widened(3),
    ):
        check_grammars(ask(schema), BOUNDS)


def test_a_property_may_be_named_like_a_keyword() -> None:
    names = ("enum", "anyOf", "properties", "pattern", "maxLength", "const", "$ref", "schema", "grammar", "required")
    check_grammars(response_format(an_object(**{name: {"type": "string"} for name in names})), BOUNDS)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "(((" rule{2,3} # ((( |||\nrule ::= [a-z(]+ | "\\"|" ',
        'start: "if" expr // (((\nexpr: /[a-z]+/',
    ],
)
def test_what_stands_in_literals_and_comments_neither_nests_nor_repeats(grammar: str) -> None:
    bounds = GrammarSettings(max_choices=1, max_depth=8)
    check_grammars({"structured_outputs": {"grammar": grammar}}, bounds)


def test_a_group_s_kind_is_no_part_that_may_be_left_out() -> None:
    check_grammars({"structured_outputs": {"regex": "(?:ab)" * 300}}, BOUNDS)
    check_grammars({"structured_outputs": {"grammar": 'root ::= "a"?\n' * 300}}, BOUNDS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "enum", "anyOf", "properties", "required", "pattern", "items", "minItems", "schema"]
            )
            | st.text(max_size=4),
            inner | st.sampled_from(["#", "#/", "#/items", "#/properties/a", "(a{3}", "a)", "[", "\\"]),
            max_size=4,
        )
    ),
    max_leaves=30,
)
FIELDS = st.sampled_from(["response_format", "structured_outputs", "tools", "json_schema", "json", "function"])


@settings(deadline=None)
@given(st.dictionaries(FIELDS, JSON, max_size=3), st.sampled_from([*WAYS.values()]), JSON)
def test_no_value_of_any_type_trips_it(data: dict[str, Any], way: Any, schema: Any) -> None:
    for body in (data, way[0](schema)):
        with contextlib.suppress(RequestError):
            check_grammars(body, BOUNDS)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 40))
def test_every_value_counts_and_none_twice(values: int, most: int) -> None:
    schema = an_object(a={"enum": ["x"] * values}, b={"items": {"anyOf": [{}] * values}})
    bounds = GrammarSettings(max_choices=most)
    if 2 * values <= most:
        check_grammars(response_format(schema), bounds)
    else:
        with pytest.raises(RequestError, match="choices"):
            check_grammars(response_format(schema), bounds)


def test_references_that_name_one_thing_in_many_ways_cost_no_more() -> None:
    many = {"anyOf": [{"$ref": f"#x{i}"} for i in range(2000)], "items": {"$ref": "#"}}
    began_s = time.process_time()
    check_grammars(response_format(many), BOUNDS)
    assert time.process_time() - began_s < 1.0
