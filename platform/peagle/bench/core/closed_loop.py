"""Closed-loop load: a fixed number of requests in flight, each timed by the arrival of its tokens."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

Stream = Callable[[list[int]], AsyncIterator[Sequence[int]]]
"""Generates from prompt tokens; each item holds the tokens of one output, at least one."""

Prompt = TypeVar("Prompt")
Answer = TypeVar("Answer")


class Arrivals(ABC):
    """One request. `arrivals_s[i]` is the time from its start to its i-th output, which may carry several tokens."""

    __slots__ = ()
    arrivals_s: tuple[float, ...]

    @property
    @abstractmethod
    def token_count(self) -> int: ...

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.arrivals_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Times between outputs, as seen by a reader of the stream."""
        return [later - earlier for earlier, later in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Trace(Arrivals):
    """One request to an engine, with the generated tokens."""

    tokens: tuple[int, ...]
    arrivals_s: tuple[float, ...]

    @property
    def token_count(self) -> int:
        return len(self.tokens)


async def run_pass(stream: Stream, prompts: Sequence[list[int]], concurrency: int) -> tuple[float, tuple[Trace, ...]]:
    """Time `closed_loop` over an engine."""
    return await closed_loop(partial(_timed, stream), prompts, concurrency)


async def closed_loop(
    ask: Callable[[Prompt], Awaitable[Answer]], prompts: Sequence[Prompt], concurrency: int
) -> tuple[float, tuple[Answer, ...]]:
    """Send every prompt, `concurrency` at a time, each as soon as an earlier one ends.

    Returns:
        Wall-clock seconds, and the answers in the order of the prompts.
    """
    answers: dict[int, Answer] = {}
    queue = iter(enumerate(prompts))

    async def lane() -> None:
        for index, prompt in queue:
            answers[index] = await ask(prompt)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as lanes:
        for _ in range(min(concurrency, len(prompts))):
            lanes.create_task(lane())
    seconds = time.perf_counter() - start
    return seconds, tuple(answers[index] for index in range(len(prompts)))


async def _timed(stream: Stream, prompt: list[int]) -> Trace:
    tokens: list[int] = []
    arrivals: list[float] = []
    start = time.perf_counter()
    async for output in stream(prompt):
        arrivals.append(time.perf_counter() - start)
        tokens.extend(output)
    return Trace(tuple(tokens), tuple(arrivals))
