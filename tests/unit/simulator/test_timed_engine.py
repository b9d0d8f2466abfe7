"""The timed engine takes its model's time: batches share steps, prompts wait for chunks, cached prefixes are free."""

import asyncio

import pytest

from peagle.router.snapshot import RouteRequest
from peagle.simulator.timed_engine import TimedEngine, TimedModel
from support.virtual_time import in_virtual_time, now_s

MODEL = TimedModel(step_s=0.01, request_step_s=0.0, prefill_tokens_per_s=10_000.0, max_running_requests=2)


def request(prompt: int, key: int | None = None, prefix: int = 0) -> RouteRequest:
    return RouteRequest("", prompt, 0, key, prefix)


async def timed(engine: TimedEngine, asked: RouteRequest, output: int) -> tuple[float, float, list[int]]:
    """Return the seconds to the first and the last token, and the output."""
    start, arrivals, said = now_s(), [], []
    async for tokens in engine.generate(asked, output):
        arrivals.append(now_s() - start)
        said.append(tokens)
    return arrivals[0], arrivals[-1], said


@in_virtual_time
async def test_a_request_gets_its_tokens_and_takes_its_steps() -> None:
    first_s, last_s, said = await timed(TimedEngine(MODEL, now_s=now_s), request(1000), 10)
    assert said == [1, 10]
    # 1,000 tokens at 10,000 per second, in two chunks of one step each, then nine steps.
    assert first_s == pytest.approx(0.1 + 2 * 0.01)
    assert last_s == pytest.approx(0.1 + 11 * 0.01)


@in_virtual_time
async def test_half_the_speed_takes_twice_as_long() -> None:
    _, last_s, _ = await timed(TimedEngine(MODEL, speed=0.5, now_s=now_s), request(1000), 10)
    assert last_s == pytest.approx(2 * (0.1 + 11 * 0.01))


@in_virtual_time
async def test_a_cached_beginning_is_not_prefilled_again() -> None:
    engine = TimedEngine(MODEL, now_s=now_s)
    cold_s, _, _ = await timed(engine, request(3000, key=1, prefix=2900), 1)
    warm_s, _, said = await timed(engine, request(3000, key=1, prefix=2900), 1)
    assert said == [1]
    # At 10,000 tokens per second and a step per chunk of 512: first all 3,000 tokens, then the 100 after the prefix.
    assert cold_s == pytest.approx(0.3 + 6 * 0.01)
    assert warm_s == pytest.approx(0.01 + 0.01)


@in_virtual_time
async def test_a_request_waits_while_the_batch_is_full_and_is_counted() -> None:
    engine = TimedEngine(MODEL, now_s=now_s)
    tasks = [asyncio.create_task(timed(engine, request(10), 20)) for _ in range(3)]
    await asyncio.sleep(0.03)
    seen = engine.snapshot("a")
    assert (seen.running_requests, seen.waiting_requests, seen.requests) == (2, 1, 3)
    waits = sorted(first_s for first_s, _, _ in await asyncio.gather(*tasks))
    # It waits for the two before it: a step for their prompts, which gives a token, and 19 more; then its own.
    assert waits[2] == pytest.approx(21 * 0.01 + 3 * 10 / 10_000)
    seen = engine.snapshot("a")
    assert (seen.requests, seen.queued_prompt_tokens) == (0, 0)
    assert seen.has_rates


@in_virtual_time
async def test_a_request_that_is_given_up_leaves_no_trace() -> None:
    engine = TimedEngine(MODEL, now_s=now_s)
    task = asyncio.create_task(timed(engine, request(10), 1000))
    await asyncio.sleep(0.03)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert engine.snapshot("a").requests == 0
