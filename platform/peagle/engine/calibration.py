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
    points = [(size, depth) for size in (*batch_sizes[::2], *batch_sizes[1::2]) for depth in depths]
    weights_left = sum(_weight(size) for size, _ in points)
    times: list[StepTime] = []
    try:
        async with asyncio.timeout(seconds):
            for batch_size, depth in points:
                until_s = _part(ends_s, _weight(batch_size) / weights_left)
                weights_left -= _weight(batch_size)
                version += 1
                await set_depths(engine_client, DepthTable(version, (depth,)))
                async with _running(engine_client, batch_size):
                    times += await _timed(engine_client, batch_size, depth, until_s)
    except TimeoutError:
        pass
    await set_depths(engine_client, DepthTable(version + 1, before.depths))
    return tuple(times)


@asynccontextmanager
async def _running(client: Any, batch_size: int) -> AsyncIterator[None]:
    """So many requests meanwhile, all of which decode; they are aborted then."""
    numbers = random.Random(batch_size)
    model = client.model_config
    vocabulary, context_tokens = model.get_vocab_size(), model.max_model_len
    prompt_tokens = max(1, min(_PROMPT_TOKENS, int(_PROMPT_SHARE_MAX * context_tokens)))
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=context_tokens - prompt_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )

    async def run(number: int, begun: asyncio.Event) -> None:
        prompt = TokensPrompt(prompt_token_ids=[numbers.randrange(vocabulary) for _ in range(prompt_tokens)])
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
