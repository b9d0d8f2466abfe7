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

# Each point has requests of its own, since contexts grow by what is accepted and a step takes longer over longer ones:
# these are alike for every K. The rule itself finds out what clients' contexts cost.
_PROMPT_TOKENS, _PROMPT_SHARE_MAX = 64, 0.25
# A point has enough with so many steps; with fewer than the least it tells nothing.
_STEPS_MAX, _STEPS_MIN = 16, 3
# Steps of a point count after this time, or this share of what it has: the first at a new shape may be slower.
_WARM_S, _WARM_SHARE = 0.1, 0.2
_POLL_S = 0.05
# Of all the time; the rest is for what overruns.
_PLANNED_SHARE = 0.85


async def calibrate(
    engine_client: Any, batch_sizes: Sequence[int], depths: Sequence[int], seconds: float
) -> tuple[StepTime, ...]:
    """Time the steps of an idle `AsyncLLM` with live depth; its depths and its prefix cache are as before afterwards.

    Args:
        engine_client: The engine. What its statistics have of this is left in them.
        batch_sizes: To be timed, each at every K of `depths`; those for which the KV cache has no room are left out.
        depths: K, each at most what the engine drafts.
        seconds: All that may be spent. The largest and the smallest batch come first, then those between.

    Returns:
        What was timed by then, in the order of its being timed.

    Raises:
        ConfigError: The engine runs without live depth.
        ExceptionGroup: It failed a request.
    """
    ends_s = time.monotonic() + _PLANNED_SHARE * seconds
    before = (await read_step_stats(engine_client)).table
    version = before.version
    sizes = spread([size for size in batch_sizes if size <= _room(engine_client, max(depths))])
    points = [(size, depth) for size in sizes for depth in depths]
    weights_left = sum(_weight(size) for size, _ in points)
    times: list[StepTime] = []
    try:
        async with asyncio.timeout(seconds):
            for batch_size, depth in points:
                until_s = _part(ends_s, _weight(batch_size) / weights_left)
                weights_left -= _weight(batch_size)
                version += 1
                await set_depths(engine_client, DepthTable(version, (depth,)))
                async with _running(engine_client, batch_size, depth) as ended:
                    times += await _timed(engine_client, batch_size, depth, until_s, ended)
    except TimeoutError:
        pass
    finally:
        await set_depths(engine_client, DepthTable(version + 1, before.depths))
    await engine_client.reset_prefix_cache()
    return tuple(times)


def spread(items: Sequence[int]) -> list[int]:
    """The last and the first of `items`, then what halves the gaps: any beginning of it tells of the whole."""
    order = [len(items) - 1, 0] if len(items) > 1 else list(range(len(items)))
    gaps = [(0, len(items) - 1)]
    for first, last in gaps:
        if last - first > 1:
            middle = (first + last) // 2
            order.append(middle)
            gaps += [(first, middle), (middle, last)]
    return [items[index] for index in order]


@asynccontextmanager
async def _running(client: Any, batch_size: int, depth: int) -> AsyncIterator[asyncio.Event]:
    """So many requests meanwhile, all of which decode; they are aborted then. The event is set if one ends by itself.

    Raises ExceptionGroup where one fails.
    """
    numbers = random.Random(f"{batch_size} {depth}")
    vocabulary, prompt_tokens = client.model_config.get_vocab_size(), _prompt_tokens(client)
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=client.model_config.max_model_len - prompt_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    waited_for = set(range(batch_size))
    begun, ended = asyncio.Event(), asyncio.Event()

    async def run(number: int) -> None:
        prompt = TokensPrompt(prompt_token_ids=[numbers.randrange(vocabulary) for _ in range(prompt_tokens)])
        async for _ in client.generate(prompt, parameters, f"peagle-calibration-{batch_size}-{depth}-{number}"):
            if number in waited_for:
                waited_for.remove(number)
                if not waited_for:
                    begun.set()
        ended.set()
        begun.set()

    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(run(number)) for number in range(batch_size)]
        await begun.wait()
        yield ended
        for request in requests:
            request.cancel()


async def _timed(client: Any, batch_size: int, depth: int, ends_s: float, ended: asyncio.Event) -> list[StepTime]:
    """Steps of that kind until `ends_s`, or until there are a few; none where the batch did not stay whole."""
    await asyncio.sleep(min(_WARM_S, _WARM_SHARE * max(0.0, ends_s - time.monotonic())))
    before = await read_step_stats(client)
    while True:
        await asyncio.sleep(_POLL_S)
        cells = (await read_step_stats(client)).since(before).cells
        timed = [cell for cell in cells if (cell.batch_size, cell.depth) == (batch_size, depth)]
        steps = sum(cell.steps for cell in timed)
        if steps >= _STEPS_MAX or ended.is_set() or (steps >= _STEPS_MIN and time.monotonic() >= ends_s):
            break
    return [
        StepTime(batch_size, depth, cell.steps, cell.seconds)
        for cell in timed
        if cell.steps >= _STEPS_MIN and cell.reached
    ]


def _prompt_tokens(client: Any) -> int:
    return max(1, min(_PROMPT_TOKENS, int(_PROMPT_SHARE_MAX * client.model_config.max_model_len)))


def _room(client: Any, depth_max: int) -> int:
    """How many requests the KV cache holds until they are timed, at most; of one, the engine has room in any case."""
    cache = client.vllm_config.cache_config
    tokens = min(_prompt_tokens(client) + 2 * _STEPS_MAX * (depth_max + 1), client.model_config.max_model_len)
    blocks: int = -(-tokens // cache.block_size)
    return max(1, (cache.num_gpu_blocks or 0) // blocks)


def _part(ends_s: float, share: float) -> float:
    """The end of a share of the time from now to `ends_s`."""
    now_s = time.monotonic()
    return now_s + max(0.0, ends_s - now_s) * share


def _weight(batch_size: int) -> float:
    """Share of the time: larger batches take longer, if not in proportion."""
    return float((batch_size + 8.0) ** 0.75)
