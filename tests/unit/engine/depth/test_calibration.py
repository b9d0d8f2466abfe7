"""Calibration of an engine without room or time, or one that fails; a stand-in answers in milliseconds."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.engine.depth import live_depth
from support.virtual_time import in_virtual_time, now_s

calibration = pytest.importorskip("peagle.engine.depth.calibration")  # it imports vLLM

SIZES, DEPTHS = (1, 2, 3, 4, 6, 8), (0, 3, 7)


class Engine:
    """Answers like an `AsyncLLM`: each running request gets a token per millisecond; `room` of them can run.

    Its steps report a millisecond for each request, and `token_s` for each token of a request's context; one step of
    `stalls_every` is delayed by a second.
    """

    def __init__(
        self,
        room: int = 8,
        fails: int | None = None,
        context_tokens: int = 1024,
        blocks: int = 400,
        step_requests: int = 8,
        token_s: float = 0.0,
        stalls_every: int = 0,
    ) -> None:
        self.step_requests, self.token_s = step_requests, token_s
        self.stalls_every, self.steps = stalls_every, 0
        self.engine_core = self
        self.model_config = SimpleNamespace(get_vocab_size=lambda: 100, max_model_len=context_tokens)
        cache = SimpleNamespace(num_gpu_blocks=blocks, block_size=16)
        self.vllm_config = SimpleNamespace(cache_config=cache)
        self.version, self.depths, self.fails = 4, [3, 1], fails
        self.places = asyncio.Semaphore(room)
        self.by_request = self.shared = False
        self.running: set[str] = set()
        self.cells: dict[tuple[int, int], dict[str, Any]] = {}
        self.resets = self.readings = 0

    async def call_utility_async(
        self, method: str, version: int = 0, depths: Any = None, by_request: bool = False
    ) -> Any:
        if method == live_depth.STEP_STATS:
            prompts = {"cells": [], "ended_prompt_tokens": 0, "ended_output_tokens": 0}
            cells = [dict(cell) for cell in self.cells.values()]
            self.readings += 1
            told = {"reading": self.readings, "version": self.version, "depths": self.depths, "depth_max": 7}
            return {**told, "by_request": self.by_request, "cells": cells, "prompts": prompts, "graphs": {}, "rows": {}}
        assert version > self.version
        self.version, self.depths, self.by_request = version, depths, by_request
        self.shared = self.shared or by_request
        return None

    async def reset_prefix_cache(self) -> bool:
        assert not self.running
        self.resets += 1
        return True

    async def generate(self, prompt: Any, parameters: Any, request_id: str) -> AsyncIterator[object]:
        async with self.places:
            self.running.add(request_id)
            try:
                for number in range(parameters.max_tokens):
                    await asyncio.sleep(0.001)
                    if self.fails == len(self.running):
                        raise RuntimeError("the engine refuses it")
                    if number == 0 or request_id == min(self.running):
                        self._step(len(prompt["prompt_token_ids"]) + number)
                    yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[number])])
            finally:
                self.running.remove(request_id)

    def _step(self, context_tokens: int) -> None:
        size, depth = min(len(self.running), self.step_requests), self.depths[0]
        none = [0] * 7
        sums = {"steps": 0, "seconds": 0.0, "tokens": 0, "drafts": 0, "drafted": none, "accepted": none}
        tails = {"tail_reached": none, "tail_matched": none}
        cell = self.cells.setdefault((size, depth), {"batch_size": size, "depth": depth, **sums, **tails})
        cell["steps"] += 1
        self.steps += 1
        stalled = self.stalls_every and self.steps % self.stalls_every == 0
        cell["seconds"] += 0.001 * size + self.token_s * context_tokens + stalled * 1.0
        cell["drafted"] = [cell["steps"] * size if position < depth else 0 for position in range(7)]


@in_virtual_time
async def test_every_point_is_timed_and_the_engine_is_as_before() -> None:
    engine = Engine()
    times = await calibration.calibrate(engine, SIZES, DEPTHS, 4.0)
    assert {(each.batch_size, each.depth) for each in times} == {(size, depth) for size in SIZES for depth in DEPTHS}
    assert all(each.seconds / each.steps == pytest.approx(0.001 * each.batch_size) for each in times)
    assert (engine.depths, engine.running, engine.resets) == ([3, 1], set(), 1)


@in_virtual_time
async def test_a_step_that_is_held_up_counts_for_no_k() -> None:
    times = await calibration.calibrate(Engine(stalls_every=211), SIZES, DEPTHS, 4.0)
    assert {(each.batch_size, each.depth) for each in times} == {(size, depth) for size in SIZES for depth in DEPTHS}
    for each in times:
        assert each.seconds / each.steps == pytest.approx(0.001 * each.batch_size)


@in_virtual_time
async def test_where_k_is_one_on_average_it_is_timed_as_such() -> None:
    engine = Engine()
    await calibration.calibrate(engine, SIZES, DEPTHS, 1.0, by_request=True)
    assert engine.shared
    assert not engine.by_request


@in_virtual_time
async def test_no_k_is_timed_over_longer_contexts_than_another() -> None:
    engine = Engine(context_tokens=100_000, token_s=1e-4)
    times = await calibration.calibrate(engine, (1, 8), (0, 1, 3, 7), 8.0)
    for size in (1, 8):
        step_s = {each.depth: each.seconds / each.steps for each in times if each.batch_size == size}
        assert set(step_s) == {0, 1, 3, 7}
        assert step_s[7] == pytest.approx(step_s[1], rel=0.15)
        assert step_s[3] == pytest.approx(step_s[1], rel=0.15)
        assert step_s[0] == pytest.approx(step_s[1], rel=0.3)


@in_virtual_time
async def test_batches_for_which_the_cache_has_no_room_are_left_out() -> None:
    engine = Engine(room=4, blocks=4 * 20)
    times = await calibration.calibrate(engine, SIZES, DEPTHS, 4.0)
    assert {each.batch_size for each in times} == {1, 2, 3, 4}


@in_virtual_time
async def test_a_batch_that_never_comes_together_takes_no_more_than_the_time() -> None:
    engine = Engine(room=7)
    times = await calibration.calibrate(engine, SIZES, DEPTHS, 0.5)
    assert 0.85 * 0.5 < now_s() <= 0.5  # the planned time: it waits for the batch, and no longer
    assert 8 not in {each.batch_size for each in times}
    assert (engine.depths, engine.running) == ([3, 1], set())


@pytest.mark.parametrize("limit", [{"room": 7}, {"step_requests": 7}])
@in_virtual_time
async def test_a_batch_that_is_never_whole_leaves_time_for_the_others(limit: dict[str, int]) -> None:
    engine = Engine(context_tokens=100_000, **limit)  # none of its requests ends by itself
    times = await calibration.calibrate(engine, SIZES, DEPTHS, 6.0)
    others = {(size, depth) for size in SIZES[:-1] for depth in DEPTHS}
    assert {(each.batch_size, each.depth) for each in times} == others


@in_virtual_time
async def test_a_request_that_fails_is_told_at_once_and_the_depths_are_as_before() -> None:
    engine = Engine(fails=8)
    with pytest.raises(ExceptionGroup) as caught:
        await calibration.calibrate(engine, SIZES, DEPTHS, 30.0)
    assert caught.group_contains(RuntimeError, match="refuses")
    assert now_s() == pytest.approx(0.001)  # with the first token, not when the batch is given up
    assert (engine.depths, engine.running) == ([3, 1], set())


@in_virtual_time
async def test_contexts_that_are_soon_full_stop_nothing() -> None:
    engine = Engine(context_tokens=12)
    await calibration.calibrate(engine, SIZES, DEPTHS, 30.0)
    assert now_s() < 1.0  # a batch whose requests have all ended is not waited for
    assert engine.depths == [3, 1]


@pytest.mark.parametrize(
    ("items", "order"),
    [([], []), ([1], [1]), ([1, 2], [2, 1]), ([1, 2, 3], [3, 1, 2]), ([1, 2, 3, 4, 6, 8, 12], [12, 1, 4, 2, 6, 3, 8])],
)
def test_ends_come_before_what_lies_between(items: list[int], order: list[int]) -> None:
    assert calibration.spread(items) == order
