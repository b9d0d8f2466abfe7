"""An engine that reports ready compiles no kernel while clients wait."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.arguments import engine_arguments, without_server
from peagle.engine.depth import live_depth
from peagle.router.snapshot import DepthTable
from peagle.serve.replica.making_ready import make_ready
from support.engines.engine_runner import embedded
from support.engines.gpu_checks import DEPTHS, SCHEMA, compiled_kernels, empty_caches, on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

# A warm-up runs none of these.
SIZES = (1, 3, 5, 12)


@pytest.fixture
async def engine(gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    for name, value in {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", **empty_caches(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    deployment = on_gpu(embedded(max_num_seqs=16, gpu_memory_utilization=0.2))
    started = AsyncLLM.from_engine_args(AsyncEngineArgs(**without_server(engine_arguments(deployment))))
    try:
        await make_ready(started, deployment, timed=False)
        yield started
    finally:
        started.shutdown()


async def test_nothing_compiles_after_ready(engine: Any) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    ways: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.95},
        {"temperature": 0.8, "top_k": 20},
        {"temperature": 0.8, "top_p": 0.95, "top_k": 20},
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.0, "structured_outputs": StructuredOutputsParams(json=SCHEMA)},
    ]

    async def ask(number: int, way: dict[str, Any]) -> None:
        prompt = {"prompt_token_ids": [*range(2, 20 + 7 * number)]}
        async for _ in engine.generate(prompt, SamplingParams(max_tokens=24, **way), f"client-{way}-{number}"):
            pass

    ready = compiled_kernels()
    assert ready > 0
    version = (await live_depth.read_step_stats(engine)).table.version
    for depth in DEPTHS:
        version += 1
        await live_depth.set_depths(engine, DepthTable(version, (depth,)))
        for size in SIZES:
            for way in ways:
                await asyncio.gather(*(ask(number, way) for number in range(size)))
            await asyncio.gather(*(ask(number, ways[number % len(ways)]) for number in range(size)))
    assert compiled_kernels() == ready
