"""Times an engine's steps before it takes requests: what a step takes at each batch size and K on this machine.

So the depth rule need not find that out on clients' time, one trial after the other, nor rest on a guess made for
another model or another device.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from peagle.engine.live_depth import read_step_stats, set_depths
from peagle.router.snapshot import DepthTable, StepTime

# Requests share all of their prompt but the end, so that only the first computes it: a step over long contexts takes
# longer, by as much at each K, and one over none would flatter K = 0.
_SHARED_TOKENS, _OWN_TOKENS = 256, 8
_SHARED_SHARE_MAX = 0.25
# A point has enough with so many steps; with fewer than the least it tells nothing.
_STEPS_MAX, _STEPS_MIN = 16, 3
# Steps of a point count after this time, or this share of what it has: the first at a new shape may be slower.
_WARM_S, _WARM_SHARE = 0.1, 0.2
_POLL_S = 0.05
# Of all the time; the rest is for what overruns.
_PLANNED_SHARE = 0.9


async def calibrate(
    engine_client: Any, batch_sizes: Sequence[int], depths: Sequence[int], seconds: float
) -> tuple[StepTime, ...]:
    """Time the steps of an idle `AsyncLLM` with live depth; its table of depths is the same afterwards.

    Args:
        engine_client: The engine. What its statistics have of this is left in them.
        batch_sizes: To be timed, each at every K of `depths`.
        depths: K, each at most what the engine drafts.
        seconds: All that may be spent. Every second batch size comes first, so that what is left out lies between.

    Returns:
        What was timed by then, in the order of its being timed.

    Raises:
        ConfigError: The engine runs without live depth.
    """
    ends_s = time.monotonic() + _PLANNED_SHARE * seconds
    before = (await read_step_stats(engine_client)).table
    version = before.version
    # Downwards: without a drafter its cache falls behind, and these requests would draft no more.
    downwards = sorted(depths, reverse=True)
    weights_left = sum(map(_weight, batch_sizes))
    prompt = _shared_tokens(engine_client)
    times: list[StepTime] = []
    try:
        async with asyncio.timeout(seconds):
            for batch_size in (*batch_sizes[::2], *batch_sizes[1::2]):
                batch_ends_s = _part(ends_s, _weight(batch_size) / weights_left)
                weights_left -= _weight(batch_size)
                version += 1
                await set_depths(engine_client, DepthTable(version, (downwards[0],)))
                async with _running(engine_client, batch_size, prompt):
                    for number, depth in enumerate(downwards):
                        version += 1
                        await set_depths(engine_client, DepthTable(version, (depth,)))
                        depth_ends_s = _part(batch_ends_s, 1.0 / (len(downwards) - number))
                        times += await _timed(engine_client, batch_size, depth, depth_ends_s)
    except TimeoutError:
        pass
    await set_depths(engine_client, DepthTable(version + 1, before.depths))
    return tuple(times)


@asynccontextmanager
async def _running(client: Any, batch_size: int, shared: list[int]) -> AsyncIterator[None]:
    """So many requests meanwhile, all of which decode; they are aborted then."""
    numbers = random.Random(batch_size)
    vocabulary = client.model_config.get_vocab_size()
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=client.model_config.max_model_len - len(shared) - _OWN_TOKENS,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )

    async def run(number: int, begun: asyncio.Event) -> None:
        own = [numbers.randrange(vocabulary) for _ in range(_OWN_TOKENS)]
        prompt = TokensPrompt(prompt_token_ids=shared + own)
        async for _ in client.generate(prompt, parameters, f"peagle-calibration-{batch_size}-{number}"):
            begun.set()

    begun = [asyncio.Event() for _ in range(batch_size)]
    requests = [asyncio.create_task(run(number, event)) for number, event in enumerate(begun)]
    try:
        for event in begun:
            await event.wait()
        yield
    finally:
        for request in requests:
            request.cancel()
        ended = await asyncio.gather(*requests, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error


def _shared_tokens(client: Any) -> list[int]:
    """How a prompt begins here; with nothing where each request would have to compute it."""
    cache, model = client.vllm_config.cache_config, client.model_config
    if not cache.enable_prefix_caching:
        return []
    count = min(_SHARED_TOKENS, int(_SHARED_SHARE_MAX * model.max_model_len))
    numbers = random.Random(0)
    return [numbers.randrange(model.get_vocab_size()) for _ in range(count - count % cache.block_size)]


def _part(ends_s: float, share: float) -> float:
    """The end of a share of the time from now to `ends_s`."""
    now_s = time.monotonic()
    return now_s + max(0.0, ends_s - now_s) * share


def _weight(batch_size: int) -> float:
    """Share of the time: larger batches take longer, if not in proportion."""
    return float((batch_size + 8.0) ** 0.75)


async def _timed(client: Any, batch_size: int, depth: int, ends_s: float) -> list[StepTime]:
    """Steps of that kind until `ends_s`, or until there are a few; none where the batch is no longer whole."""
    await asyncio.sleep(min(_WARM_S, _WARM_SHARE * max(0.0, ends_s - time.monotonic())))
    before = await read_step_stats(client)
    while True:
        await asyncio.sleep(_POLL_S)
        cells = [cell for cell in (await read_step_stats(client)).since(before).cells if cell.steps]
        whole = [cell for cell in cells if (cell.batch_size, cell.depth) == (batch_size, depth)]
        steps = sum(cell.steps for cell in whole)
        enough = steps >= _STEPS_MIN or len(whole) < len(cells)
        if steps >= _STEPS_MAX or (enough and time.monotonic() >= ends_s):
            break
    return [
        StepTime(batch_size, depth, cell.steps, cell.seconds)
        for cell in whole
        if cell.steps >= _STEPS_MIN and cell.reached
    ]
