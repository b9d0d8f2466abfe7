"""JSON is counted before it is parsed, and the contents of strings do not count as structure."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.api.bounds.json_text import MAX_ITEMS, MAX_NODES, holds_more, is_nested_deeper

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}",\\a', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[{"\\', max_size=3), inner, max_size=3)
    ),
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@settings(deadline=None)
@given(VALUES, st.integers(0, 8))
def test_nesting_is_that_of_the_parsed_value(value: Any, most: int) -> None:
    assert is_nested_deeper(json.dumps(value), most) == (depth_of(value) > most)


@pytest.mark.parametrize("piece", [b"{},", b"[],", b'"k":0,'])
def test_more_keys_and_containers_than_any_request_has_are_found(piece: bytes) -> None:
    assert holds_more(b"[" + piece * MAX_NODES + b"0]") == f"{MAX_NODES} keys, arrays and objects"


def test_more_values_than_any_prompt_has_tokens_are_found() -> None:
    assert holds_more(b"[" + b"0," * MAX_ITEMS + b"0]") == f"{MAX_ITEMS} values"
    assert holds_more(b"[" + b"0," * (MAX_ITEMS - 2) + b"0]") is None


def test_a_long_text_of_brackets_and_commas_is_one_value() -> None:
    text = json.dumps({"prompt": '[{"a": 1, "b": [1, 2]}],' * 100_000}).encode()
    assert holds_more(text) is None


def test_a_text_that_is_cut_off_is_left_to_the_parser() -> None:
    assert holds_more(b'{"prompt": "' + b"," * 2 * MAX_ITEMS) is not None
    assert holds_more(b'{"a": "\\') is None
