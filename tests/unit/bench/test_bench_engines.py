"""What a comparison tells its engines, and what it may not lose while it does."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.plan import plan_engines
from peagle.config import load_deployment
from peagle.router.snapshot import DepthTable

DEPLOYMENT = Path(__file__).parents[3] / "deployments" / "embedded.yaml"


class Core:
    """Applies tables as an engine core does, at once, and answers a while later."""

    def __init__(self) -> None:
        self.version = 0
        self.engine_core = self

    async def call_utility_async(self, _method: str, version: int, _depths: list[int]) -> list[Any] | None:
        if version <= self.version:
            return ["depth table version", version, "it is applied already", "Send a later one."]
        self.version = version
        await asyncio.sleep(0.05)
        return None

    async def reset_prefix_cache(self) -> bool:
        return True


async def test_a_table_whose_sender_was_cancelled_counts_as_sent() -> None:
    engines = pytest.importorskip("peagle.bench.engines")  # it imports vLLM
    plan = next(
        each
        for each in plan_engines(load_deployment(DEPLOYMENT), None, ("p-eagle",), (7,), eager=True, adaptive=True)
        if each.live
    )
    core = Core()
    engine = engines.Engine(plan, core, [], 8)
    sending = asyncio.create_task(engine._apply(DepthTable(1, (3,))))
    await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await engine.prepare(7)
    assert core.version == 2
