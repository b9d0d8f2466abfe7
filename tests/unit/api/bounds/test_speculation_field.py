"""The field `speculation`: accepted values, errors that name the field, and the way to the engine."""

from typing import Any

import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import ChatCompletionRequest, CompletionRequest

from peagle.api.body import validate
from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG, take_depth_max
from peagle.api.ingress import to_generate
from peagle.errors import RequestError

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "x"}


@pytest.mark.parametrize(
    ("speculation", "bound"),
    [
        ({"depth_max": 0}, 0),
        ({"depth_max": 3}, 3),
        ({"depth_max": 2**62}, 2**62),
        ({"depth_max": None}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_bound_is_a_whole_number_from_0_or_none(speculation: Any, bound: int | None) -> None:
    body = {"prompt": "x", "speculation": speculation}
    assert take_depth_max(body) == bound
    assert body == {"prompt": "x"}


@pytest.mark.parametrize(
    ("speculation", "param", "says"),
    [
        ({"depth_max": -1}, "speculation.depth_max", "integer of at least 0"),
        ({"depth_max": True}, "speculation.depth_max", "not True"),
        ({"depth_max": 2.0}, "speculation.depth_max", "not 2.0"),
        ({"depth_max": "3"}, "speculation.depth_max", "not '3'"),
        ({"depth_max": "9" * 10_000}, "speculation.depth_max", "..."),
        ({"depth_max": [0]}, "speculation.depth_max", "integer"),
        ({"depth": 3}, "speculation.depth", "takes depth_max"),
        ({"depth_max": 3, "drafter": "none"}, "speculation.drafter", "takes depth_max"),
        (0, "speculation", "object"),
        ("off", "speculation", "object"),
        (False, "speculation", "object"),
        ([], "speculation", "object"),
    ],
)
def test_anything_else_is_refused_by_the_name_that_its_client_wrote(speculation: Any, param: str, says: str) -> None:
    with pytest.raises(RequestError) as refused:
        take_depth_max({"speculation": speculation})
    assert refused.value.param == param
    assert refused.value.message.startswith(param)
    assert says in refused.value.message
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("model", "body"), [(ChatCompletionRequest, CHAT), (CompletionRequest, COMPLETION)], ids=["chat", "completion"]
)
@pytest.mark.parametrize("n", [1, 3])
def test_a_bound_is_in_the_parameters_of_each_choice(model: type[Any], body: dict[str, Any], n: int) -> None:
    from vllm.v1.engine.parallel_sampling import ParentRequest

    asked = {**body, "n": n, "vllm_xargs": {"other": "x"}, "speculation": {"depth_max": 2}}
    params = to_generate(model, asked).to_sampling_params(16, {})
    assert params.extra_args == {"other": "x", DEPTH_MAX_ARG: 2}
    if n > 1:
        parent = ParentRequest.__new__(ParentRequest)
        parent.sampling_params, parent.cached_child_sampling_params = params, None
        for index in range(n):
            assert parent._get_child_sampling_params(index).extra_args[DEPTH_MAX_ARG] == 2
    assert to_generate(model, dict(body)).to_sampling_params(16, {}).extra_args is None


def test_by_another_way_no_client_sets_a_bound() -> None:
    with pytest.raises(RequestError) as refused:
        validate(CompletionRequest, {**COMPLETION, "vllm_xargs": {DEPTH_MAX_ARG: "x"}})
    assert refused.value.param == f"vllm_xargs.{DEPTH_MAX_ARG}"
