"""Settings of measured engines, and state that the depth rule keeps between turns."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.bench.engines.engine_plan import plan_engines
from peagle.config import load_deployment
from peagle.engine.depth import live_depth
from peagle.router.depth import DepthPlan, Mode
from peagle.router.snapshot import DepthTable
from peagle.serve.reporting import TRIAL_S
from support.paths import DEPLOYMENTS

DEPLOYMENT = DEPLOYMENTS / "embedded.yaml"


class Core:
    """Applies tables at once, like an engine core, and answers later."""

    def __init__(self) -> None:
        self.version = self.readings = 0
        self.engine_core = self

    async def call_utility_async(
        self, method: str, version: int = 0, _depths: Any = None, by_request: bool = False
    ) -> Any:
        if method == live_depth.STEP_STATS:
            prompts = {"cells": [], "ended_prompt_tokens": 0, "ended_output_tokens": 0}
            self.readings += 1
            told = {
                "reading": self.readings,
                "version": self.version,
                "depths": [7],
                "by_request": by_request,
                "depth_max": 7,
            }
            return {**told, "cells": [], "prompts": prompts, "graphs": {}, "rows": {}}
        if version <= self.version:
            return ["depth table version", version, "it is applied already", "Send a later one."]
        self.version = version
        await asyncio.sleep(0.05)
        return None

    async def reset_prefix_cache(self) -> bool:
        return True


def adaptive_engine(core: Core) -> Any:
    engines = pytest.importorskip("peagle.bench.engines.vllm_engines")  # it imports vLLM
    deployment = load_deployment(DEPLOYMENT)
    # The core below answers no requests, so no steps can be timed.
    quick = deployment.speculation.model_copy(update={"calibration_s": 0.0})
    deployment = deployment.model_copy(update={"speculation": quick})
    (plan,) = plan_engines(deployment, None, ("p-eagle",), (7,), eager=True, adaptive=True)
    return engines.Engine(plan, core, [], 8)


def rule(engine: Any, *plans: DepthPlan) -> None:
    """Return these plans for the engine's next reports."""
    left = iter(plans)
    engine._rules[None] = engine._rule_of(SimpleNamespace(report=lambda *_: next(left)))


async def test_a_table_whose_sender_was_cancelled_counts_as_sent() -> None:
    core = Core()
    engine = adaptive_engine(core)
    sending = asyncio.create_task(engine._apply(DepthTable(1, (3,))))
    await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await engine.prepare(7)
    assert core.version == 2


async def test_the_rules_clock_stands_still_while_others_have_the_engine() -> None:
    engine = adaptive_engine(Core())
    now_s: list[float] = []

    def report(_replica: str, _report: Any, at_s: float) -> DepthPlan:
        now_s.append(at_s)
        return DepthPlan(DepthTable(0, (7,)), Mode.ADAPTIVE, "")

    engine._rules[None] = engine._rule_of(SimpleNamespace(report=report))
    began_s = time.monotonic()
    for _ in range(2):
        async with engine.adapting():
            await engine._rule.reporter.report()
        ended_s = time.monotonic()
        await asyncio.sleep(0.3)
    assert 0.0 <= now_s[1] - now_s[0] <= ended_s - began_s - 0.3


@pytest.mark.parametrize(("then", "settled"), [(7, False), (3, True)])
async def test_a_trial_that_is_kept_is_a_change_from_when_it_is(then: int, settled: bool) -> None:
    engine = adaptive_engine(Core())
    await engine.prepare(7)
    trial, last = DepthTable(2, (3,)), DepthTable(2 if then == 3 else 3, (then,))
    rule(engine, DepthPlan(trial, Mode.PROBING, "", untried=(7,)), *[DepthPlan(last, Mode.ADAPTIVE, "")] * 2)
    started_s = time.monotonic()
    async with engine.adapting():
        await engine._rule.reporter.report()
        assert engine.settled_s(1, started_s) == 0.0
        kept_s = time.monotonic() - started_s
        await engine._rule.reporter.report()
        assert (engine.settled_s(1, started_s) >= kept_s) == settled
        assert engine.depth_changes(1, started_s) == (1 if settled else 2)
        assert engine.depth_changes(1, time.monotonic()) == 0


async def test_a_held_rule_is_pinned_and_another_than_the_one_that_adapts() -> None:
    engine = adaptive_engine(Core())
    async with engine.adapting(3):
        await engine._rule.reporter.report()
        held = engine._rule
    async with engine.adapting():
        await engine._rule.reporter.report()
    assert (held.plan.mode, held.plan.table.depth_at(1)) == (Mode.PINNED, 3)
    assert engine._rule is not held
    assert engine._rule.plan.mode is not Mode.PINNED


async def test_a_trial_goes_on_where_others_had_the_engine_meanwhile() -> None:
    engine = adaptive_engine(Core())
    trial = DepthPlan(DepthTable(2, (3,)), Mode.PROBING, "", untried=(7,))
    rule(engine, trial, DepthPlan(DepthTable(5, (7,)), Mode.ADAPTIVE, ""))
    await engine.prepare(7)
    async with engine.adapting():
        await engine._rule.reporter.report()
    await engine.prepare(5)
    adaptive = engine._rules[None]
    adaptive.left_s -= 2 * TRIAL_S  # so long ago
    async with engine.adapting():
        started_s = time.monotonic()
        assert engine._applied[-1][1].depths == trial.table.depths
        await adaptive.reporter.report()
        assert [table.depths for _, table in engine._applied[-2:]] == [trial.table.depths, (7,)], "the rule ended it"
        assert engine.settled_s(1, started_s) == 0.0, "neither a trial nor its end is a change"
