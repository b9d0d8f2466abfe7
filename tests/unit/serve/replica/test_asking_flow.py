"""A request's flow on its way from a replica's call to the scheduler."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from peagle.router.fairness.step_sharing import Flow
from peagle.serve.replica.asking_flow import FLOW, named, named_encode


async def carried(flow: Flow | None, extra: dict[str, Any] | None) -> Any:
    """Return the `extra_args` of the engine's call."""
    from vllm import SamplingParams

    seen = []

    async def generate(prompt: str, sampling_params: Any, request_id: str) -> AsyncGenerator[int, None]:
        seen.append(sampling_params.extra_args)
        yield 1

    FLOW.set(flow)
    assert [each async for each in named(generate)("prompt", SamplingParams(extra_args=extra), request_id="r")] == [1]
    return seen[0]


async def test_the_engine_is_told_whose_request_it_is() -> None:
    assert await carried(Flow("team", 3.0, True), None) == {"peagle_flow": ["team", 3.0, True]}
    assert await carried(Flow("team"), {"mine": 1}) == {"mine": 1, "peagle_flow": ["team", 1.0, False]}


async def test_a_request_of_nobody_is_as_it_was() -> None:
    assert await carried(None, None) is None
    assert await carried(None, {"mine": 1}) == {"mine": 1}


async def test_requests_at_once_do_not_take_each_other_s() -> None:
    found = await asyncio.gather(*(asyncio.create_task(carried(Flow(name), None)) for name in "abc"))
    assert [each["peagle_flow"][0] for each in found] == ["a", "b", "c"]


@pytest.mark.parametrize("extra", [None, {"mine": 1}])
async def test_an_engine_that_embeds_is_told_too(extra: dict[str, Any] | None) -> None:
    from vllm import PoolingParams

    params = PoolingParams(task="embed", extra_kwargs=extra)

    async def encode(prompt: str, pooling_params: Any, request_id: str) -> AsyncGenerator[int, None]:
        yield 1

    for flow in (None, Flow("team")):
        FLOW.set(flow)
        assert [_ async for _ in named_encode(encode)(prompt="x", pooling_params=params, request_id="r")] == [1]
        told = {} if flow is None else {"peagle_flow": ["team", 1.0, False]}
        assert (params.extra_kwargs or {}) == {**(extra or {}), **told}
