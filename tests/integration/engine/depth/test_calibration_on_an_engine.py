"""A real engine is timed at every batch size and K before it serves, and is as before afterwards."""

import asyncio
import time
from pathlib import Path

import pytest

from peagle.bench.engines.engine_plan import plan_engines
from peagle.bench.engines.vllm_engines import Engine
from peagle.config import load_deployment
from peagle.engine.depth import live_depth
from peagle.engine.depth.calibration import calibrate
from peagle.router.snapshot import DepthTable
from support.paths import DEPLOYMENTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEPLOYMENT = DEPLOYMENTS / "embedded.yaml"
SIZES, DEPTHS = (1, 2, 4), (0, 3, 7)


async def test_each_point_is_timed_and_nothing_is_left_behind(tmp_path: Path) -> None:
    (plan,) = plan_engines(load_deployment(DEPLOYMENT), None, ("p-eagle",), (7,), eager=True, adaptive=True)
    engine = Engine.start(plan, 8, tmp_path / "log")
    try:
        client = engine._llm
        await live_depth.set_depths(client, DepthTable(5, (3, 3, 1)))
        times = await calibrate(client, SIZES, DEPTHS, 30.0)
        assert {(each.batch_size, each.depth) for each in times} == {(size, k) for size in SIZES for k in DEPTHS}
        assert all(each.steps >= 3 and each.seconds > 0 for each in times)

        stats = await live_depth.read_step_stats(client)
        assert stats.table.depths == (3, 3, 1)
        assert stats.table.version > 5
        # What was timed is what its K says: each request drafted to the end, and where K is 0 none did.
        cells = {(cell.batch_size, cell.depth): cell for cell in stats.cells}
        assert all(cells[each.batch_size, each.depth].steps >= each.steps for each in times)
        assert all(cells[size, depth].reached and not cells[size, depth].rested for size in SIZES for depth in (3, 7))
        assert not any(sum(cells[size, 0].drafted) for size in SIZES)

        # Every request has been taken back: the next one has the engine for itself.
        await engine.settle()
        assert [token async for tokens in engine.stream([1, 2, 3]) for token in tokens]
        added = (await live_depth.read_step_stats(client)).since(stats)
        assert {cell.batch_size for cell in added.cells if cell.steps} == {1}

        # Too little time: what was under way is taken back.
        began_s = time.monotonic()
        few = await calibrate(client, (1, 8, 16, 24, 32), tuple(range(8)), 1.0)
        assert time.monotonic() - began_s < 5.0
        assert len(few) < 40
        async with asyncio.timeout(10.0):
            await engine.settle()
    finally:
        engine.stop()
