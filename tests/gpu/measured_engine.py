"""One engine of a shape with made-up weights, started in parallel with others and measured alone.

Started by measure_gpu.py. When it is warm it creates the file `--ready`. It reads from its input for how many seconds
it may begin a pass, measures, and writes JSON.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from peagle.bench.core.closed_loop import Trace
from peagle.bench.core.records import NONE, PEAGLE
from peagle.bench.engines.engine_plan import EnginePlan, Variant
from peagle.bench.engines.made_up import made_up, random_prompts
from peagle.bench.engines.speculation import one_pass
from peagle.bench.engines.step_costs import times_since
from peagle.config import Deployment, parse_deployment
from peagle.router.depth.cost_table import CostTable
from support.engines.gpu_checks import compiled_kernels
from support.engines.gpu_lines import ADAPTIVE, DEPTHS, LOADS

SHAPE = "llama-3.1-8b"
ACCEPTANCE = (0.83, 0.60, 0.45, 0.34, 0.27, 0.21, 0.17)
TOKENS = 300
EAGLE3_LOADS = (1, 32, 128)
# A first step can be distinguished from the others if all prompts fit into the step before it.
FIRST_STEP_LOADS = (1, 8, 32)
# Rounds in which the rule may learn before its choice is measured.
LEARNING = 2
CALIBRATION_S = 20.0


def plan_of(name: str, deployments: dict[str, Deployment]) -> EnginePlan:
    """Return the engine called `none`, `p-eagle` or `eagle3 K=…`."""
    method, _, depth = name.partition(" K=")
    # A CPU's sampler cannot simulate an acceptance curve.
    acceptance = ACCEPTANCE if deployments[PEAGLE].resources.accelerator == "gpu" else None
    if method == NONE:
        return EnginePlan(NONE, _with(deployments[PEAGLE], enabled=False), (0,), live=False)
    if method == PEAGLE:
        deployment = _with(deployments[PEAGLE], depth_max=7, depth_static=7, calibration_s=CALIBRATION_S)
        return EnginePlan(PEAGLE, deployment, DEPTHS, live=True, acceptance=acceptance)
    k = int(depth)
    deployment = _with(deployments[method], depth_max=k, depth_static=k, live_depth=False)
    return EnginePlan(method, deployment, (k,), live=False, acceptance=acceptance)


def _with(deployment: Deployment, **speculation: Any) -> Deployment:
    changed = deployment.speculation.model_copy(update=speculation)
    return deployment.model_copy(update={"speculation": changed})


def like(kv_gib: float, batch_max: int, accelerator: str) -> Deployment:
    """Return the settings common to all engines; none may take its usual share of the memory."""
    raw: dict[str, Any] = {
        "name": SHAPE,
        "target": {"source": "org/target"},
        "drafter": {"source": "org/head", "trained_depth": 7},
        "engine": {
            "max_model_len": 1024,
            "max_num_seqs": batch_max,
            # Free memory is meaningless while other engines start.
            "gpu_memory_utilization": 0.05,
            "kv_cache_memory_bytes": int(kv_gib * 2**30),
        },
        "resources": {"accelerator": accelerator},
    }
    return parse_deployment(raw, origin=SHAPE)


async def measure(engine: Any, plan: EnginePlan, passes: int, loads: Sequence[int], ends_s: float) -> dict[str, Any]:
    """Measure every variant at every load in turn, for as many passes as there is time."""
    variants = [Variant(0, plan.method, depth) for depth in plan.depths]
    if plan.live:
        variants.append(Variant(0, plan.method, 7, adaptive=True))
    rows: dict[tuple[int, int | str], dict[str, Any]] = {}
    compiled, before = compiled_kernels(), await engine.step_cells()
    graphs = await _graphs(engine)
    prompts = random_prompts(engine.vocabulary, max(loads))
    for number in range(passes):
        for load in loads:
            for variant in variants:
                if number and time.monotonic() > ends_s:
                    continue
                for _ in range(LEARNING if variant.adaptive and number == 0 else 0):
                    await one_pass(engine, variant, prompts[:load], load)
                run = await one_pass(engine, variant, prompts[:load], load)
                key = load, ADAPTIVE if variant.adaptive else variant.depth
                row = rows.setdefault(key, {"load": load, "variant": key[1], "tokens_per_s": []})
                row["tokens_per_s"].append(run.output_tokens_per_s)
                if number == 0 and not variant.adaptive and load in FIRST_STEP_LOADS:
                    row["first_step_ratio"] = first_step_ratio(run.traces)
    costs = CostTable.of(times_since(await engine.step_cells(), before))
    for (load, variant), row in rows.items():
        timed = [each for each in costs.times if (each.batch_size, each.depth) == (load, variant)]
        row["step_ms"] = 1e3 * timed[0].seconds / timed[0].steps if timed else None
    return {
        "rows": [*rows.values()],
        "cost_table": costs.plain(),
        "compiled": compiled_kernels() - compiled,
        "steps_by_graph": {kind: count - graphs.get(kind, 0) for kind, count in (await _graphs(engine)).items()},
    }


def first_step_ratio(traces: Sequence[Trace]) -> float:
    """Return the first decode step over the median of the later ones, for the request that began last."""
    gaps = max(traces, key=lambda trace: trace.ttft_s).gaps_s
    return gaps[0] / median(gaps[1:])


async def _graphs(engine: Any) -> dict[str, int]:
    stats = await engine.step_stats()
    return dict(stats.steps_by_graph) if stats is not None else {}


@contextmanager
def started(options: argparse.Namespace, batch_max: int) -> Iterator[Any]:
    """Run the engine, with its shape's files, for the duration of the block."""
    from peagle.bench.engines.vllm_engines import Engine

    own = like(options.kv_gib, batch_max, options.accelerator)
    with made_up(options.shape, own, options.accelerator) as deployments:
        engine = Engine.start(plan_of(options.name, deployments), options.tokens, options.out.with_suffix(".log"))
        try:
            yield engine
        finally:
            engine.stop()


async def run(options: argparse.Namespace) -> None:
    began_s = time.monotonic()
    loads = options.loads or (EAGLE3_LOADS if options.name.startswith("eagle3") else LOADS)
    with started(options, max(loads)) as engine:
        start_s = time.monotonic() - began_s
        await engine.warm_up()
        warm_up_s = time.monotonic() - began_s - start_s
        options.ready.touch()
        budget_s = float(await asyncio.to_thread(sys.stdin.readline))
        found = await measure(engine, engine.plan, options.passes, loads, time.monotonic() + budget_s)
    found |= {"start_s": start_s, "warm_up_s": warm_up_s}
    options.out.write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--kv-gib", type=float, default=9.0)
    parser.add_argument("--shape", default=SHAPE)
    parser.add_argument("--accelerator", default="gpu", choices=("gpu", "cpu"))
    parser.add_argument("--loads", type=int, nargs="*")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engine ends with its process
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
