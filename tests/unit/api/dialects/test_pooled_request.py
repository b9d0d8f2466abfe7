"""Embedding and scoring requests on their way to a replica, and their answers."""

import json
import pickle
from typing import Any

import pytest

from peagle.api.clients.request_charge import charge_of
from peagle.api.dialects.pooled_request import PooledReply, PooledRequest, to_embeddings, to_rerank, to_score
from peagle.errors import RequestError
from peagle.router.fairness.client_terms import Client
from peagle.serve.routing.route_request import route_request

LONG = "x" * 400


@pytest.mark.parametrize("text", ["x", ["x", "y"], [1, 2], [[1, 2], [3]]])
def test_an_input_travels_as_it_was_written(text: Any) -> None:
    data = {"model": "m", "input": text, "dimensions": 8, "encoding_format": "base64", "user": "u"}
    request = to_embeddings({**data})
    assert request.fields == data
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.read().model_dump(include={"input", "dimensions"}) == {"input": text, "dimensions": 8}


@pytest.mark.parametrize(
    "data",
    [
        {"queries": "x", "documents": ["y", "z"]},
        {"queries": ["x"], "items": ["y"]},
        {"text_1": "x", "text_2": "y"},
        {"data_1": ["x", "z"], "data_2": ["y", "z"]},
    ],
)
def test_scores_are_asked_for_under_any_of_vllm_s_names(data: dict[str, Any]) -> None:
    left, right = data.values()
    asked: Any = to_score({**data}).read()
    assert (asked.data_1, asked.data_2) == (left, right)


@pytest.mark.parametrize(
    ("make", "data", "param", "code"),
    [
        (to_embeddings, {}, "input", "missing_required_parameter"),
        (to_embeddings, {"input": None}, "input", None),
        (to_embeddings, {"input": {"a": 1}}, "input", None),
        (to_embeddings, {"input": "x", "encoding_format": "bytes"}, "encoding_format", None),
        (to_embeddings, {"input": "x", "encoding_format": None}, "encoding_format", None),
        (to_embeddings, {"input": "x", "dimensions": "many"}, "dimensions", None),
        (to_embeddings, {"messages": [{"role": "user", "content": "x"}]}, "messages", "unsupported_parameter"),
        (to_rerank, {"documents": ["x"]}, "query", "missing_required_parameter"),
        (to_rerank, {"query": "x"}, "documents", "missing_required_parameter"),
        (to_rerank, {"query": "x", "documents": ["y"], "top_n": -1}, "top_n", None),
        (to_score, {}, "queries", "missing_required_parameter"),
        (to_score, {"queries": "x", "documents": 1}, "documents", None),
    ],
)
def test_what_is_wrong_is_named(make: Any, data: dict[str, Any], param: str, code: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        make(data)
    assert (refused.value.param, refused.value.code) == (param, code)


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (to_embeddings({"input": LONG}), 100),
        (to_embeddings({"input": [LONG, LONG]}), 200),
        (to_embeddings({"input": [1] * 50}), 50),
        (to_embeddings({"input": [[1] * 50, [1] * 30]}), 80),
        (to_rerank({"query": LONG, "documents": [LONG] * 3}), 600),
        (to_score({"text_1": [LONG] * 2, "text_2": [LONG] * 2}), 400),
    ],
)
def test_it_costs_its_prompts_and_no_output(request_: PooledRequest, tokens: int) -> None:
    weighed = route_request("r", request_, usual_output_tokens=500.0)
    assert weighed.prompt_tokens == pytest.approx(tokens, abs=3)
    assert weighed.output_tokens == 1
    charge = charge_of(Client("c"), "m", request_, 500.0)
    assert charge.prompt_tokens == pytest.approx(tokens, abs=3)
    assert charge.output_tokens == 0


def test_an_answer_s_usage_is_read_and_nothing_else() -> None:
    separators = (",", ":")  # as vLLM writes it
    usage = {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": None}
    told = {"id": "score-r", "usage": usage, "results": [{"document": {"text": '"usage":{"prompt_tokens":9}'}}]}
    body = json.dumps(told, separators=separators).encode()
    assert PooledReply.of(body) == PooledReply(usage=usage, body=body)
    far = json.dumps({"data": [0.5] * 100_000, "usage": usage}, separators=separators).encode()
    assert PooledReply.of(far).usage == usage
