"""What a warm-up asks of an engine; a stand-in answers in milliseconds of virtual time."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.config import Deployment, parse_deployment
from peagle.engine.depth import live_depth
from peagle.router.depth.warm_runs import SamplingPath, WarmRun, warm_batch_sizes
from support.virtual_time import in_virtual_time

warming = pytest.importorskip("peagle.engine.depth.warm_up")  # it imports vLLM


class Engine:
    """Answers like an `AsyncLLM`; records the K, the batch and the path of every output."""

    def __init__(self, *, batch_max: int = 8, blocks: int = 10_000, context: int = 4096, live: bool = True) -> None:
        self.engine_core, self.live = self, live
        self.tokenizer: object = object()
        self.model_config = SimpleNamespace(
            get_vocab_size=lambda: 100, max_model_len=context, max_logprobs=20, runner_type="generate"
        )
        self.vllm_config = SimpleNamespace(
            cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=16),
            num_lookahead_tokens=7,
            scheduler_config=SimpleNamespace(max_num_seqs=batch_max, max_num_batched_tokens=512),
        )
        self.version, self.depths, self.by_request = 4, [3, 1], False
        self.running: dict[str, str] = {}
        self.seen: dict[tuple[int, int, str], int] = {}
        self.began_at: list[int] = []
        self.prompts: set[int] = set()
        self.resets = 0
        # which output of two simultaneous requests fails, and the delay before depths are confirmed
        self.fails_at: int | None = None
        self.says_so_s = 0.0

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        assert self.live
        if method == live_depth.STEP_STATS:
            prompts = {"cells": [], "ended_prompt_tokens": 0, "ended_output_tokens": 0}
            told = {"reading": 1, "version": self.version, "depths": self.depths, "depth_max": 7, "cells": []}
            return {**told, "by_request": self.by_request, "prompts": prompts, "graphs": {}, "rows": {}}
        assert args[0] > self.version
        self.version, self.depths, self.by_request = args
        await asyncio.sleep(self.says_so_s)
        return None

    async def reset_prefix_cache(self) -> bool:
        assert not self.running
        self.resets += 1
        return True

    async def generate(self, prompt: Any, parameters: Any, request_id: str) -> AsyncIterator[object]:
        self.began_at.append(self.depths[0])
        self.prompts.add(len(prompt["prompt_token_ids"]))
        self.running[request_id] = _path(parameters)
        try:
            for number in range(parameters.max_tokens):
                await asyncio.sleep(0.001)
                if number == self.fails_at and len(self.running) == 2:
                    raise RuntimeError("the engine refuses it")
                for path in {*self.running.values()}:
                    key = len(self.running), self.depths[0], path
                    self.seen[key] = self.seen.get(key, 0) + 1
                yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[number])])
        finally:
            del self.running[request_id]


def _path(parameters: Any) -> str:
    if parameters.structured_outputs is not None:
        return "grammar"
    if parameters.logprobs is not None:
        return "logprobs"
    if parameters.temperature == 0.0:
        return "greedy"
    if parameters.seed is not None:
        return "seeded"
    filters = {"top_p": parameters.top_p < 1.0, "top_k": parameters.top_k > 0}
    assert any(filters.values())
    return "random" if all(filters.values()) else next(name for name, is_set in filters.items() if is_set)


def deployment(accelerator: str = "gpu", **speculation: Any) -> Deployment:
    raw: dict[str, Any] = {
        "name": "m",
        "target": {"source": "org/target"},
        "drafter": {"source": "org/head", "trained_depth": 7},
        "speculation": speculation,
        "resources": {"accelerator": accelerator},
    }
    return parse_deployment(raw, origin="test")


PURE = [path for path in SamplingPath if path is not SamplingPath.MIXED]


@in_virtual_time
async def test_every_k_decodes_at_every_batch_size_through_every_path_and_the_engine_is_as_before() -> None:
    engine, told = Engine(), []
    batches = await warming.warm_up(engine, deployment(), lambda done, of: told.append((done, of)))
    for size in warm_batch_sizes(8):
        for depth in (0, 1, 2, 3, 5, 7):
            for path in PURE:
                assert engine.seen[size, depth, path] >= 3
    assert (engine.depths, engine.running, engine.resets) == ([3, 1], {}, 1)
    assert told == [(number, batches) for number in range(batches + 1)]
    # The drafter runs over every prompt; otherwise the request would rest at every K.
    assert set(engine.began_at) == {7}
    assert engine.prompts == {1, 4, 16, 64, 256, 512}


@in_virtual_time
async def test_a_fixed_k_is_not_changed() -> None:
    engine = Engine(live=False)
    await warming.warm_up(engine, deployment(live_depth=False, depth_static=3), lambda done, of: None)
    sizes = {size for size, _, _ in engine.seen}
    assert sizes >= set(warm_batch_sizes(8))
    assert engine.version == 4


@in_virtual_time
async def test_without_a_tokenizer_or_logprobs_the_others_run() -> None:
    engine = Engine()
    engine.tokenizer, engine.model_config.max_logprobs = None, 0
    await warming.warm_up(engine, deployment(), lambda done, of: None)
    assert {path for _, _, path in engine.seen} == {"greedy", "random", "top_p", "top_k", "seeded"}


# A request of 16 tokens grows by at most 144 and drafts 7 beyond them: 11 blocks. vLLM reserves one block.
@pytest.mark.parametrize(("blocks", "largest"), [(22, 1), (23, 2), (40, 2), (89, 8)])
@in_virtual_time
async def test_batches_for_which_the_cache_has_no_room_are_left_out(blocks: int, largest: int) -> None:
    engine = Engine(batch_max=64, blocks=blocks)
    await warming.warm_up(engine, deployment(), lambda done, of: None)
    assert max(size for size, _, _ in engine.seen) == largest


@in_virtual_time
async def test_contexts_that_are_soon_full_stop_nothing() -> None:
    engine = Engine(context=12)
    await warming.warm_up(engine, deployment(), lambda done, of: None)
    assert (engine.depths, engine.running) == ([3, 1], {})


@pytest.mark.parametrize(("fails_at", "says_so_s"), [(0, 0.0), (4, 0.01)], ids=["at first", "while depths are set"])
@in_virtual_time
async def test_a_request_that_fails_is_told_and_the_depths_are_as_before(fails_at: int, says_so_s: float) -> None:
    engine = Engine()
    engine.fails_at, engine.says_so_s = fails_at, says_so_s
    with pytest.raises(ExceptionGroup) as caught:
        await warming.warm_up(engine, deployment(), lambda done, of: None)
    assert caught.group_contains(RuntimeError, match="refuses")
    assert (engine.depths, engine.running) == ([3, 1], {})


@in_virtual_time
async def test_on_a_cpu_each_path_runs_once_with_one_request_and_once_with_two() -> None:
    engine = Engine()
    await warming.warm_up(engine, deployment("cpu"), lambda done, of: None)
    assert {depth for _, depth, _ in engine.seen} == {0, 7}
    assert {(size, path) for size, _, path in engine.seen} >= {
        (size, path) for size in (1, 2) for path in SamplingPath if path is not SamplingPath.MIXED
    }


def test_the_runs_of_an_engine_follow_its_limits() -> None:
    runs = warming.runs_of(Engine(batch_max=24, context=1000), deployment(depth_max=3, depth_static=3))
    assert {run.batch_size for run in runs} == {1, 2, 8, 16, 24}
    assert {depth for run in runs for depth in run.depths} == {0, 1, 2, 3}
    assert max(run.prompt_tokens for run in runs) == 250
    assert all(isinstance(run, WarmRun) for run in runs)
