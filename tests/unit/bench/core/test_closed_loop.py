"""Closed-loop load on a generator without an engine."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from peagle.bench.core.closed_loop import Trace, run_pass
from peagle.bench.core.workloads import prompt_sets


class Counting:
    """Generates the prompt back in outputs of two tokens, and records the highest concurrency."""

    def __init__(self) -> None:
        self.running = 0
        self.most = 0

    async def stream(self, prompt: list[int]) -> AsyncIterator[Sequence[int]]:
        self.running += 1
        self.most = max(self.most, self.running)
        for start in range(0, len(prompt), 2):
            await asyncio.sleep(0.001)
            yield prompt[start : start + 2]
        self.running -= 1


async def test_never_more_requests_at_once_than_asked_for_and_all_are_answered_in_order() -> None:
    engine = Counting()
    prompts = [[number] * (2 + number % 5) for number in range(13)]
    _, traces = await run_pass(engine.stream, prompts, concurrency=4)
    assert engine.most == 4
    assert [list(trace.tokens) for trace in traces] == prompts


async def test_a_pass_lasts_at_least_as_long_as_its_longest_request() -> None:
    seconds, traces = await run_pass(Counting().stream, [[1] * 20, [2] * 4], concurrency=2)
    assert seconds >= max(trace.arrivals_s[-1] for trace in traces) > 0


def test_gaps_are_between_outputs_and_leave_out_the_first() -> None:
    trace = Trace(tokens=(1, 2, 3, 4), arrivals_s=(0.5, 0.75, 1.75))
    assert trace.ttft_s == 0.5
    assert trace.gaps_s == [0.25, 1.0]


def test_prompt_sets_hold_every_prompt_once_and_are_a_few_rounds_long() -> None:
    prompts = [[number] for number in range(24)]
    sets = prompt_sets(prompts, concurrency=1)
    assert [len(part) for part in sets] == [3] * 8
    assert [prompt for part in sets for prompt in part] == prompts
    assert [len(part) for part in prompt_sets(prompts, concurrency=8)] == [24]


def test_no_prompt_set_is_too_short_for_its_concurrency() -> None:
    prompts = [[number] for number in range(25)]
    sets = prompt_sets(prompts, concurrency=4)
    assert [len(part) for part in sets] == [12, 13]
    assert [prompt for part in sets for prompt in part] == prompts
    assert prompt_sets(prompts, concurrency=16) == [prompts]
