"""Size limits of embedding and scoring requests."""

from typing import Any

import pytest

from peagle.api.api_settings import ApiSettings
from peagle.api.bounds.pooled_bounds import TIMES_IN_ALL, check_pooled
from peagle.errors import RequestError

SETTINGS = ApiSettings(max_inputs=8, max_prompt_chars=1024)
HALF = "x" * 500
TOO_MANY, TOO_LONG = "array_above_max_length", "context_length_exceeded"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"input": "x" * 1024},
        {"input": list(range(1024))},
        {"input": ["x"] * 8},
        {"input": [[1, 2]] * 8},
        {"input": []},
        {"query": HALF, "documents": [HALF] * 8},
        {"queries": ["x"] * 8, "documents": ["x"] * 8},
        {"input": [None, {}, 1.5], "query": 7},  # of wrong types; validation says so
    ],
)
def test_what_is_within_bounds_passes(data: dict[str, Any]) -> None:
    check_pooled(data, SETTINGS, None)


@pytest.mark.parametrize(
    ("data", "param", "code"),
    [
        ({"input": "x" * 1025}, "input", TOO_LONG),
        ({"input": [1] * 1025}, "input", TOO_LONG),
        ({"input": ["x", [1] * 1025]}, "input", TOO_LONG),
        ({"input": ["x"] * 9}, "input", TOO_MANY),
        ({"input": [[1]] * 9}, "input", TOO_MANY),
        ({"query": "x", "documents": ["x"] * 9}, "documents", TOO_MANY),
        ({"text_1": ["x"] * 9, "text_2": "x"}, "text_1", TOO_MANY),
        # A query is paired with each document, and so is the template's prefix of both.
        ({"query": HALF, "documents": ["x" * 525]}, "documents", TOO_LONG),
        ({"query": "x", "documents": ["x"], "instruction": "x" * 1024}, "query", TOO_LONG),
        ({"input": "x", "extra": [1] * 300_000}, "extra", TOO_MANY),
        ({"input": [1] * 2000 + ["x"]}, "input[2000]", None),
    ],
)
def test_what_is_beyond_one_is_refused_by_its_name(data: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        check_pooled(data, SETTINGS, None)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize("field", ["input", "documents"])
def test_all_texts_together_are_bounded(field: str) -> None:
    settings = ApiSettings(max_prompt_chars=1024)
    count = TIMES_IN_ALL * 1024 // len(HALF)
    check_pooled({field: [HALF] * count}, settings, None)
    with pytest.raises(RequestError, match="all texts together"):
        check_pooled({field: [HALF] * (count + 1)}, settings, None)


def test_a_query_counts_once_for_each_document() -> None:
    settings = ApiSettings(max_prompt_chars=1024)
    check_pooled({"query": HALF, "documents": ["x"] * 16}, settings, None)
    with pytest.raises(RequestError, match="all texts together"):
        check_pooled({"query": HALF, "documents": ["x"] * 17}, settings, None)


def test_many_texts_of_a_long_context_may_have_no_more_than_one_text() -> None:
    check_pooled({"input": ["x" * 2**20] * 4}, ApiSettings(), None)
    with pytest.raises(RequestError, match="all texts together have 4194305 characters"):
        check_pooled({"input": ["x" * 2**20] * 4 + ["x"]}, ApiSettings(), None)


def test_the_bound_follows_from_the_model_s_context() -> None:
    check_pooled({"input": "x" * 2**18}, ApiSettings(), 512)
    with pytest.raises(RequestError):
        check_pooled({"input": "x" * (2**18 + 1)}, ApiSettings(), 512)
    check_pooled({"input": "x" * (2**18 + 1)}, ApiSettings(), 2**15)
