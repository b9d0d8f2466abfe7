"""Warms up an engine before it takes requests: every K at several batch sizes through every sampling path.

`router/depth/warm_runs.py` plans the runs. On a CPU only a few kernels of vLLM's sampling compile at first use.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from peagle.config import Deployment
from peagle.engine.arguments import drafted_depth
from peagle.engine.depth.live_depth import read_step_stats, set_depths
from peagle.router.depth import depth_ladder
from peagle.router.depth.warm_runs import SamplingPath, WarmRun, path_of, warm_runs
from peagle.router.snapshot import DepthTable

# Outputs of every request at each K. Under asynchronous scheduling a step of the previous K may still be running.
_STEPS = 3
# Steps planned for at each K, if all drafts are accepted.
_STEPS_MAX = 2 * _STEPS
# Any text matches, so no draft is cut and the batch stays at its K.
_GRAMMAR = r"(.|\n)*"
_PROMPT_SHARE_MAX = 0.25

Told = Callable[[int, int], None]
"""Called with the number of finished batches and the number of all batches."""


async def warm_up(client: Any, deployment: Deployment, tell: Told) -> int:
    """Run the batches of `runs_of` on an idle `AsyncLLM`; restores its depths and leaves its prefix cache empty.

    Returns:
        The number of batches that ran.

    Raises:
        ExceptionGroup: The engine failed a request.
    """
    live = deployment.speculates and deployment.speculation.live_depth
    return await run_all(client, runs_of(client, deployment), live=live, by_request=deployment.shares_drafts, tell=tell)


def runs_of(client: Any, deployment: Deployment) -> tuple[WarmRun, ...]:
    """Return the runs that warm up `deployment`'s engine; empty if it embeds or scores."""
    if deployment.pools:
        return ()
    speculation, depth = deployment.speculation, drafted_depth(deployment)
    live = deployment.speculates and speculation.live_depth
    rungs = depth_ladder(speculation.depth_max, static=speculation.depth_static) if live else (depth,)
    scheduler = client.vllm_config.scheduler_config
    longest = min(scheduler.max_num_batched_tokens, int(_PROMPT_SHARE_MAX * client.model_config.max_model_len))
    if deployment.resources.accelerator == "cpu":
        # What compiles depends on the path, on whether a batch drafts, and on whether it has one row or more.
        return warm_runs((rungs[0], rungs[-1]), min(scheduler.max_num_seqs, 2), 1, _lacking(client))
    return warm_runs(rungs, scheduler.max_num_seqs, max(1, longest), _lacking(client))


async def run_all(client: Any, runs: Sequence[WarmRun], *, live: bool, by_request: bool, tell: Told) -> int:
    """Run `runs` one after the other, skipping those that exceed the KV cache.

    Args:
        client: vLLM's `AsyncLLM`, idle.
        runs: The batches; without live depth their K only states what the engine does anyway.
        live: Whether the engine's K can be set.
        by_request: Whether K is an average.
        tell: Receives the progress, before the first batch and after each.

    Raises:
        ExceptionGroup: The engine failed a request.
    """
    fitting = [run for run in runs if run.batch_size <= _room(client, run)]
    if not fitting:
        return 0
    before = (await read_step_stats(client)).table if live else DepthTable(0, (0,))
    version = before.version

    async def use(depth: int) -> None:
        nonlocal version
        # Counted first: the engine may have applied the table even if the call then fails.
        version += 1
        if live:
            await set_depths(client, DepthTable(version, (depth,), by_request))

    try:
        for number, run in enumerate(fitting):
            tell(number, len(fitting))
            await use(run.depths[0])  # before the prompts, because the drafter runs over them, too
            async with _decoding(client, run, number) as batch:
                for depth in run.depths:
                    await use(depth)
                    if not await batch.each_gets(_STEPS):
                        break
    finally:
        if live:
            await set_depths(client, replace(before, version=version + 1))
    await client.reset_prefix_cache()
    tell(len(fitting), len(fitting))
    return len(fitting)


class _Batch:
    """Decoding requests: the number of outputs of each, and whether one has ended."""

    def __init__(self, size: int) -> None:
        self._outputs = [0] * size
        self._ended = False
        self._changed = asyncio.Event()

    def count(self, number: int) -> None:
        self._outputs[number] += 1
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    async def each_gets(self, outputs: int) -> bool:
        """Wait until every request has got `outputs` more; return False if a request ends before."""
        wanted = [got + outputs for got in self._outputs]
        while any(got < needed for got, needed in zip(self._outputs, wanted, strict=True)):
            if self._ended:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True


@asynccontextmanager
async def _decoding(client: Any, run: WarmRun, number: int) -> AsyncIterator[_Batch]:
    """Run the requests of `run`; yield after the first output of each, and abort them at the end.

    Raises ExceptionGroup if a request fails.
    """
    batch, numbers = _Batch(run.batch_size), random.Random(number)
    vocabulary, paths = client.model_config.get_vocab_size(), _pure_paths(client)
    max_tokens = min(_tokens_at_most(run), client.model_config.max_model_len - run.prompt_tokens)

    async def ask(request: int) -> None:
        prompt = TokensPrompt(prompt_token_ids=[numbers.randrange(vocabulary) for _ in range(run.prompt_tokens)])
        parameters = _parameters(path_of(run, request, paths), request, max_tokens)
        async for _ in client.generate(prompt, parameters, f"peagle-warm-up-{number}-{request}"):
            batch.count(request)
        batch.end()

    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(ask(request)) for request in range(run.batch_size)]
        await batch.each_gets(1)
        yield batch
        for request in requests:
            request.cancel()


def _parameters(path: SamplingPath, number: int, max_tokens: int) -> SamplingParams:
    own: dict[SamplingPath, dict[str, Any]] = {
        SamplingPath.GREEDY: {"temperature": 0.0},
        # Each filter has its own kernel, and so have both together. A seeded request covers sampling without filters.
        SamplingPath.RANDOM: {"temperature": 1.0, "top_p": 0.9, "top_k": 50},
        SamplingPath.TOP_P: {"temperature": 1.0, "top_p": 0.9},
        SamplingPath.TOP_K: {"temperature": 1.0, "top_k": 50},
        SamplingPath.SEEDED: {"temperature": 1.0, "seed": number},
        SamplingPath.LOGPROBS: {"temperature": 1.0, "logprobs": 1},
        # `min_tokens` is the full length, because the grammar would let the text end.
        SamplingPath.GRAMMAR: {
            "temperature": 0.0,
            "min_tokens": max_tokens,
            "structured_outputs": StructuredOutputsParams(regex=_GRAMMAR),
        },
    }
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA, **own[path])


def _lacking(client: Any) -> tuple[SamplingPath, ...]:
    lacking = []
    if client.tokenizer is None:
        lacking.append(SamplingPath.GRAMMAR)
    if client.model_config.max_logprobs == 0:
        lacking.append(SamplingPath.LOGPROBS)
    return tuple(lacking)


def _pure_paths(client: Any) -> list[SamplingPath]:
    lacking = (*_lacking(client), SamplingPath.MIXED)
    return [path for path in SamplingPath if path not in lacking]


def _tokens_at_most(run: WarmRun) -> int:
    return _STEPS_MAX * sum(depth + 1 for depth in run.depths)


def _room(client: Any, run: WarmRun) -> int:
    """Return how many such requests fit in the KV cache at once; at least 1."""
    cache, reserved = client.vllm_config.cache_config, client.vllm_config.num_lookahead_tokens
    tokens = min(run.prompt_tokens + _tokens_at_most(run) + reserved, client.model_config.max_model_len)
    blocks: int = -(-tokens // cache.block_size)
    # vLLM reserves one block.
    return max(1, ((cache.num_gpu_blocks or 0) - 1) // blocks)
