"""Times an engine's steps before it takes requests: what a step takes at each batch size and K on this machine.

So the depth rule need not find that out on clients' time, one trial after the other, nor rest on a guess made for
another model or another device.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low
from typing import Any

from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind

from peagle.engine.depth.live_depth import StepStatsReader, read_step_stats, set_depths
from peagle.router.snapshot import DepthTable, StepCell, StepStats, StepTime

# Contexts grow while requests are timed, and a step takes longer over longer ones. So all K that draft take turns on
# the same requests, there and back, which gives each the same context on average; and K = 0, after which these may
# draft no more, has others, as long as those were on average. The rule itself finds out what clients' contexts cost.
_PROMPT_TOKENS, _PROMPT_SHARE_MAX = 64, 0.25
# There and back. A machine that is busy for a moment is so for one of a K's two turns.
_TURNS = 2
# K = 0 gets as much time as so many others: its prompts are longer.
_ZERO_WEIGHT = 2
# A turn has enough with so many steps; with fewer than the least it tells nothing.
_STEPS_MAX, _STEPS_MIN = 8, 2
# Steps that take so many times the median were held up, such as by another process. Those that draft deeper than the
# others, as one in a few does, take longer too, but not so much.
_STALLED = 2.0
# Short, so that few steps end between two readings, and one that was held up is seen by itself.
_POLL_S = 0.005
# Of all the time; the rest is for what overruns.
_PLANNED_SHARE = 0.85


async def calibrate(
    engine_client: Any, batch_sizes: Sequence[int], depths: Sequence[int], seconds: float, *, by_request: bool = False
) -> tuple[StepTime, ...]:
    """Time the steps of an idle `AsyncLLM` with live depth; its depths and its prefix cache are as before afterwards.

    Args:
        engine_client: The engine. What its statistics have of this is left in them.
        batch_sizes: To be timed, each at every K of `depths`; those for which the KV cache has no room are left out.
        depths: K, each at most what the engine drafts.
        by_request: Whether K is one on average, for which more may be drafted.
        seconds: All that may be spent. The largest and the smallest batch come first, then those between.

    Returns:
        What was timed by then, in the order of its being timed.

    Raises:
        ConfigError: The engine runs without live depth.
        ExceptionGroup: It failed a request.
    """
    ends_s = _now_s() + _PLANNED_SHARE * seconds
    before = (await read_step_stats(engine_client)).table
    points = _Points(engine_client, depths, before.version, by_request)
    sizes = spread([size for size in batch_sizes if size <= _room(engine_client, depths)])
    weights_left = sum(map(_weight, sizes))
    try:
        async with asyncio.timeout(seconds):
            for batch_size in sizes:
                until_s = _part(ends_s, _weight(batch_size) / weights_left)
                weights_left -= _weight(batch_size)
                await points.time_batch(batch_size, until_s)
    except TimeoutError:
        pass
    finally:
        await set_depths(engine_client, replace(before, version=points.version + 1))
    await engine_client.reset_prefix_cache()
    return tuple(points.times.values())


class _Points:
    """What was timed, by batch size and K, and the version of the last table that was sent."""

    def __init__(self, client: Any, depths: Sequence[int], version: int, by_request: bool) -> None:
        self.version = version
        self._by_request = by_request
        self.times: dict[tuple[int, int], StepTime] = {}
        self._client = client
        self._drafting = [depth for depth in depths if depth]
        self._zero = len(self._drafting) < len(depths)

    async def time_batch(self, batch_size: int, ends_s: float) -> None:
        """Time all K with so many requests; one that gets not even a few steps by then has them all the same."""
        prompt_tokens = _prompt_tokens(self._client)
        if self._drafting:
            share = len(self._drafting) / (len(self._drafting) + _ZERO_WEIGHT * self._zero)
            grown = await self._take_turns(batch_size, self._drafting, prompt_tokens, _part(ends_s, share))
            # Those at K = 0 will grow, too.
            longer = max(0, grown - _TURNS * _STEPS_MAX) // 2
            prompt_tokens = min(prompt_tokens + longer, _context(self._client) // 2)
        if self._zero:
            await self._take_turns(batch_size, [0], prompt_tokens, ends_s)

    async def _take_turns(self, batch_size: int, depths: Sequence[int], prompt_tokens: int, ends_s: float) -> int:
        """Returns by how many tokens each request has grown."""
        turns = [*depths, *reversed(depths)]
        timed: dict[int, list[StepTime]] = {depth: [] for depth in depths}
        await self._use(turns[0])
        try:
            async with _running(self._client, batch_size, prompt_tokens, ends_s) as batch:
                for number, depth in enumerate(turns):
                    await self._use(depth)
                    until_s = _part(ends_s, 1 / (len(turns) - number))
                    if (found := await _timed(self._client, batch_size, depth, until_s, batch.ended)) is not None:
                        timed[depth].append(found)
            return batch.tokens // batch_size
        finally:
            self.times |= {(batch_size, depth): _mean(found) for depth, found in timed.items() if found}

    async def _use(self, depth: int) -> None:
        self.version += 1
        await set_depths(self._client, DepthTable(self.version, (depth,), self._by_request))


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


@dataclass(slots=True)
class _Batch:
    """Requests that run: the tokens that they got so far, and whether one of them has ended by itself."""

    tokens: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def _running(client: Any, batch_size: int, prompt_tokens: int, ends_s: float) -> AsyncIterator[_Batch]:
    """So many requests meanwhile, all of which decode, if they have all begun by `ends_s`; they are aborted then.

    Raises ExceptionGroup where one fails.
    """
    numbers = random.Random(f"{batch_size} {prompt_tokens}")
    vocabulary = client.model_config.get_vocab_size()
    parameters = SamplingParams(
        temperature=0.0,
        max_tokens=_context(client) - prompt_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    waited_for = set(range(batch_size))
    begun, batch = asyncio.Event(), _Batch()

    async def run(number: int) -> None:
        prompt = TokensPrompt(prompt_token_ids=[numbers.randrange(vocabulary) for _ in range(prompt_tokens)])
        name = f"peagle-calibration-{batch_size}-{prompt_tokens}-{number}"
        async for output in client.generate(prompt, parameters, name):
            batch.tokens += len(output.outputs[0].token_ids)
            if number in waited_for:
                waited_for.remove(number)
                if not waited_for:
                    begun.set()
        batch.ended.set()
        begun.set()

    async with asyncio.TaskGroup() as group:
        requests = [group.create_task(run(number)) for number in range(batch_size)]
        try:
            async with asyncio.timeout(max(0.0, ends_s - _now_s())):
                await begun.wait()
        except TimeoutError:
            batch.ended.set()
        yield batch
        for request in requests:
            request.cancel()


async def _timed(client: Any, batch_size: int, depth: int, ends_s: float, ended: asyncio.Event) -> StepTime | None:
    """Steps of that kind until `ends_s`, or until there are a few; None where the batch did not stay whole, or never
    was: a step may have no budget for all of its tokens.

    The first one is left out: it may verify what was drafted for another K, and be slower.
    """
    begun: StepStats | None = None
    stats = StepStatsReader(client)
    before = last = await stats.read()
    parts: list[StepTime] = []
    while True:
        await asyncio.sleep(_POLL_S)
        now = await stats.read()
        cell, part = _cell(now, begun or before, batch_size, depth), _cell(now, last, batch_size, depth)
        last = now
        if begun is None and cell is None and sum(each.steps for each in now.since(before).cells) >= _STEPS_MAX:
            return None
        if begun is None and cell is not None:
            begun, cell = now, None
        elif part is not None:
            parts.append(StepTime(batch_size, depth, part.steps, part.seconds))
        steps = cell.steps if cell is not None else 0
        if steps >= _STEPS_MAX or ended.is_set() or (steps >= _STEPS_MIN and _now_s() >= ends_s):
            break
    if cell is None or cell.steps < _STEPS_MIN or not cell.reached:
        return None
    return StepTime(batch_size, depth, cell.steps, cell.steps * _usual_s(parts))


def _usual_s(parts: Sequence[StepTime]) -> float:
    """The mean seconds of a step, of `parts` of which none but the sum is known, without those that were held up."""
    middle_s = median_low(_step_s(part) for part in parts for _ in range(part.steps))
    kept = [part for part in parts if _step_s(part) <= _STALLED * middle_s]
    return sum(part.seconds for part in kept) / sum(part.steps for part in kept)


def _mean(turns: Sequence[StepTime]) -> StepTime:
    """All of one K's turns, each of the same weight: the context of one makes up for that of the other."""
    steps = sum(each.steps for each in turns)
    return StepTime(turns[0].batch_size, turns[0].depth, steps, steps * fmean(map(_step_s, turns)))


def _step_s(part: StepTime) -> float:
    return part.seconds / part.steps


def _cell(now: StepStats, before: StepStats, batch_size: int, depth: int) -> StepCell | None:
    """What was added of that kind, if any step was."""
    cells = now.since(before).cells
    return next((cell for cell in cells if (cell.batch_size, cell.depth) == (batch_size, depth) and cell.steps), None)


def _context(client: Any) -> int:
    return int(client.model_config.max_model_len)


def _prompt_tokens(client: Any) -> int:
    return max(1, min(_PROMPT_TOKENS, int(_PROMPT_SHARE_MAX * _context(client))))


def _room(client: Any, depths: Sequence[int]) -> int:
    """How many requests the KV cache holds until they are timed, at most; of one, the engine has room in any case."""
    cache = client.vllm_config.cache_config
    grown = _TURNS * _STEPS_MAX * sum(depth + 1 for depth in depths if depth)  # were all drafts right
    tokens = min(_prompt_tokens(client) + grown, _context(client))
    blocks: int = -(-tokens // cache.block_size)
    return max(1, (cache.num_gpu_blocks or 0) // blocks)


def _now_s() -> float:
    """The event loop's time, by which its timeouts end."""
    return asyncio.get_running_loop().time()


def _part(ends_s: float, share: float) -> float:
    """The end of a share of the time from now to `ends_s`."""
    now_s = _now_s()
    return now_s + max(0.0, ends_s - now_s) * share


def _weight(batch_size: int) -> float:
    """Share of the time: larger batches take longer, if not in proportion."""
    return float((batch_size + 8.0) ** 0.75)
