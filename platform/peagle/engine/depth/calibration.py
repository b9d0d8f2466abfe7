"""Times an engine's steps by batch size and K on this machine, before the engine takes requests.

The depth rule then needs neither trials on client requests nor a prior made for another model or device.
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

# Contexts grow while requests are timed, and longer contexts make steps slower. So all drafting K take turns on the
# same requests, forwards and backwards, which gives each K the same mean context. Requests cannot draft again after
# K = 0, so K = 0 gets other requests, with prompts of that mean length. The rule itself learns clients' contexts.
_PROMPT_TOKENS, _PROMPT_SHARE_MAX = 64, 0.25
# Forwards and backwards, so that a short disturbance hits only one of a K's two turns.
_TURNS = 2
# Share of the time for K = 0, relative to the other K: its prompts are longer.
_ZERO_WEIGHT = 2
# Steps after which a turn ends, and the minimum for a turn to count.
_STEPS_MAX, _STEPS_MIN = 8, 2
# Steps that take this multiple of the median were held up, for example by another process. Steps that draft deeper, one
# in a few, are slower too, but by less.
_STALLED = 2.0
# Short, so that few steps end between two readings and a delayed step shows up separately.
_POLL_S = 0.005
# Share of the time that is planned; the rest is for overruns.
_PLANNED_SHARE = 0.85


async def calibrate(
    engine_client: Any, batch_sizes: Sequence[int], depths: Sequence[int], seconds: float, *, by_request: bool = False
) -> tuple[StepTime, ...]:
    """Time the steps of an idle `AsyncLLM` with live depth; restores its depths and leaves its prefix cache empty.

    Args:
        engine_client: The engine. Its statistics include the timed steps.
        batch_sizes: Batch sizes to time at every K of `depths`; sizes that exceed the KV cache are skipped.
        depths: Values of K, each at most what the engine drafts.
        by_request: Whether K is an average, for which the engine may draft deeper.
        seconds: Time limit. The largest and the smallest batch come first, then those between.

    Returns:
        What was timed within the limit, in the order of measurement.

    Raises:
        ConfigError: The engine runs without live depth.
        ExceptionGroup: The engine failed a request.
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
    """Timed steps by batch size and K, and the version of the last table sent."""

    def __init__(self, client: Any, depths: Sequence[int], version: int, by_request: bool) -> None:
        self.version = version
        self._by_request = by_request
        self.times: dict[tuple[int, int], StepTime] = {}
        self._client = client
        self._drafting = [depth for depth in depths if depth]
        self._zero = len(self._drafting) < len(depths)

    async def time_batch(self, batch_size: int, ends_s: float) -> None:
        """Time every K at this batch size. Each K gets at least the minimum of steps, even past `ends_s`."""
        prompt_tokens = _prompt_tokens(self._client)
        if self._drafting:
            share = len(self._drafting) / (len(self._drafting) + _ZERO_WEIGHT * self._zero)
            grown = await self._take_turns(batch_size, self._drafting, prompt_tokens, _part(ends_s, share))
            # Contexts at K = 0 grow, too.
            longer = max(0, grown - _TURNS * _STEPS_MAX) // 2
            prompt_tokens = min(prompt_tokens + longer, _context(self._client) // 2)
        if self._zero:
            await self._take_turns(batch_size, [0], prompt_tokens, ends_s)

    async def _take_turns(self, batch_size: int, depths: Sequence[int], prompt_tokens: int, ends_s: float) -> int:
        """Time each depth in both directions; return by how many tokens each request has grown."""
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
    """Return the last and the first of `items`, then those that halve the gaps, so any prefix covers the range."""
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
    """Running requests: the tokens they got so far, and whether one of them has ended by itself."""

    tokens: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def _running(client: Any, batch_size: int, prompt_tokens: int, ends_s: float) -> AsyncIterator[_Batch]:
    """Run `batch_size` requests and yield once all decode or `ends_s` is reached; abort them afterwards.

    Raises ExceptionGroup if a request fails.
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
    """Time steps of this batch size and K until `ends_s` or `_STEPS_MAX`; None if the batch was never complete.

    It is never complete if the token budget of a step is too small for all of its requests. The first step is excluded:
    it may verify drafts made for another K, and be slower.
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
    """Return the mean seconds of a step, without delayed steps; each of `parts` is the sum of a few steps."""
    middle_s = median_low(_step_s(part) for part in parts for _ in range(part.steps))
    kept = [part for part in parts if _step_s(part) <= _STALLED * middle_s]
    return sum(part.seconds for part in kept) / sum(part.steps for part in kept)


def _mean(turns: Sequence[StepTime]) -> StepTime:
    """Average all turns of one K with equal weight, so that short and long contexts balance."""
    steps = sum(each.steps for each in turns)
    return StepTime(turns[0].batch_size, turns[0].depth, steps, steps * fmean(map(_step_s, turns)))


def _step_s(part: StepTime) -> float:
    return part.seconds / part.steps


def _cell(now: StepStats, before: StepStats, batch_size: int, depth: int) -> StepCell | None:
    """Return what was added for this batch size and K; None without a step."""
    cells = now.since(before).cells
    return next((cell for cell in cells if (cell.batch_size, cell.depth) == (batch_size, depth) and cell.steps), None)


def _context(client: Any) -> int:
    return int(client.model_config.max_model_len)


def _prompt_tokens(client: Any) -> int:
    return max(1, min(_PROMPT_TOKENS, int(_PROMPT_SHARE_MAX * _context(client))))


def _room(client: Any, depths: Sequence[int]) -> int:
    """Return how many requests the KV cache holds until they are timed; at least 1."""
    cache = client.vllm_config.cache_config
    grown = _TURNS * _STEPS_MAX * sum(depth + 1 for depth in depths if depth)  # if all drafts were accepted
    tokens = min(_prompt_tokens(client) + grown, _context(client))
    blocks: int = -(-tokens // cache.block_size)
    return max(1, (cache.num_gpu_blocks or 0) // blocks)


def _now_s() -> float:
    """Return the time on the event loop's clock, which its timeouts use."""
    return asyncio.get_running_loop().time()


def _part(ends_s: float, share: float) -> float:
    """Return the end of a share of the time from now to `ends_s`."""
    now_s = _now_s()
    return now_s + max(0.0, ends_s - now_s) * share


def _weight(batch_size: int) -> float:
    """Return the share of time for a batch size: larger batches take longer, but less than in proportion."""
    return float((batch_size + 8.0) ** 0.75)
