"""A shape with made-up weights runs in a real engine, which reports its step times."""

import json
from pathlib import Path

import pytest

from peagle.bench.engines.engine_plan import plan_engines, variants_of
from peagle.bench.engines.made_up import made_up, random_prompts
from peagle.bench.engines.speculation import one_pass
from peagle.config import parse_deployment
from peagle.router.depth.cost_table import CostTable
from support.engines.tiny_shape import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ENGINE = {
    "name": "m",
    "target": {"source": "org/target"},
    "drafter": {"source": "org/head", "trained_depth": 7},
    "engine": {"max_num_seqs": 4, "kv_cache_memory_bytes": 64 << 20},
    "resources": {"accelerator": "cpu"},
}


async def test_every_k_has_a_step_time_at_the_batch_that_was_asked_for(tmp_path: Path) -> None:
    from peagle.bench.engines.vllm_engines import Engine

    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    with made_up(str(tmp_path / "tiny.json"), parse_deployment(ENGINE, origin="m"), "cpu") as files:
        plans = plan_engines(files["p-eagle"], None, ["p-eagle"], [0, 3, 7], eager=True)
        engine = Engine.start(plans[0], 24, tmp_path / "engine.log")
        try:
            await engine.warm_up()
            prompts = random_prompts(engine.vocabulary, 4)
            for variant in variants_of(plans):
                run = await one_pass(engine, variant, prompts, 4)
                assert run.output_tokens == 4 * 24
            table = CostTable.of(await engine.step_cells())
        finally:
            engine.stop()
    assert table.depths == (0, 3, 7)
    assert all(table.step_s(4, depth) > 0 for depth in table.depths)
