"""A real engine is timed at every batch size and K before it serves, and is unchanged afterwards."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from peagle.engine.arguments import engine_arguments, without_server
from peagle.engine.depth import live_depth
from peagle.engine.depth.calibration import calibrate
from peagle.router.depth.warm_runs import SamplingPath, warm_batch_sizes, warm_runs
from peagle.router.snapshot import DepthTable, StepStats
from support.engines.engine_runner import KV_CACHE_GIB, embedded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SIZES, DEPTHS = (1, 2, 4), (0, 3, 7)
# Calibration ends once each point is timed, however long that takes on a busy machine.
ENOUGH_S = 300.0


class Watched:
    """An engine that counts requests that run to their end."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.ended = engine, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, *args: Any) -> AsyncIterator[Any]:
        async for output in self.engine.generate(*args):
            yield output
        self.ended += 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Watched]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    deployment = embedded(enforce_eager=True)
    environment = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GIB}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**environment, **deployment.environment}.items():
            patch.setenv(name, value)
        started = AsyncLLM.from_engine_args(AsyncEngineArgs(**without_server(engine_arguments(deployment))))
        try:
            yield Watched(started)
        finally:
            started.shutdown()


async def with_table(engine: Watched) -> StepStats:
    """The engine's counts once a table of the test's own is in force."""
    version = (await live_depth.read_step_stats(engine)).table.version
    await live_depth.set_depths(engine, DepthTable(version + 1, (3, 3, 1)))
    return await live_depth.read_step_stats(engine)


async def test_each_point_is_timed_and_nothing_is_left_behind(engine: Watched) -> None:
    from vllm import SamplingParams

    before = await with_table(engine)
    times = await calibrate(engine, SIZES, DEPTHS, ENOUGH_S)
    assert {(each.batch_size, each.depth) for each in times} == {(size, k) for size in SIZES for k in DEPTHS}
    assert all(each.steps >= 3 and each.seconds > 0 for each in times)

    stats = await live_depth.read_step_stats(engine)
    assert stats.table.depths == (3, 3, 1)
    assert stats.table.version > before.table.version
    # The timed steps match their K: each request drafted to the end, and at K = 0 none did.
    cells = {(cell.batch_size, cell.depth): cell for cell in stats.since(before).cells}
    assert all(cells[each.batch_size, each.depth].steps >= each.steps for each in times)
    assert all(cells[size, depth].reached and not cells[size, depth].rested for size in SIZES for depth in (3, 7))
    assert not any(sum(cells[size, 0].drafted) for size in SIZES)

    # Every request has been aborted, so the next one has the engine for itself.
    assert await engine.reset_prefix_cache()
    parameters = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    assert [output async for output in engine.generate({"prompt_token_ids": [1, 2, 3]}, parameters, "next")]
    added = (await live_depth.read_step_stats(engine)).since(stats)
    assert {cell.batch_size for cell in added.cells if cell.steps} == {1}

    # With too little time, running requests are aborted instead of awaited.
    engine.ended = 0
    few = await calibrate(engine, (1, 8, 16, 24, 32), tuple(range(8)), 1.0)
    assert len(few) < 40
    assert engine.ended == 0
    async with asyncio.timeout(ENOUGH_S):
        assert await engine.reset_prefix_cache()


async def test_every_k_runs_through_every_path_and_nothing_is_left_behind(engine: Watched) -> None:
    """The warm-up of a GPU engine, on a CPU, which does not need it."""
    from peagle.engine.depth.warm_up import run_all

    runs = warm_runs(DEPTHS, 3, 100)
    told: list[tuple[int, int]] = []
    before, engine.ended = await with_table(engine), 0
    done = await run_all(engine, runs, live=True, by_request=False, tell=lambda done, of: told.append((done, of)))
    assert done == len(runs)
    assert told[-1] == (done, done)
    assert {run.path for run in runs} == set(SamplingPath)

    stats = await live_depth.read_step_stats(engine)
    assert (stats.table.depths, engine.ended) == ((3, 3, 1), 0)
    cells = {(cell.batch_size, cell.depth): cell for cell in stats.since(before).cells}
    paths = len(SamplingPath)
    for size in warm_batch_sizes(3):
        for depth in DEPTHS:
            # A separate step for each path, and drafts as deep as requested.
            assert cells[size, depth].steps >= paths - (size == 1)
            assert depth == 0 or cells[size, depth].reached
    assert await engine.reset_prefix_cache()
