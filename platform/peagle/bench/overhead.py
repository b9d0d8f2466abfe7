"""What lies between an engine and its clients: the same closed-loop load on servers that take turns, pass by pass."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from peagle.bench.completions import Reply
from peagle.bench.load import closed_loop
from peagle.bench.process_cpu import Reading, used_s
from peagle.bench.speculation import PassKey
from peagle.bench.workloads import prompt_sets
from peagle.errors import ConfigError
from peagle.prompt_file import Prompt

SCRAPE_EVERY_S = 5.0
CLIENT = "client"


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """Prompts that were chosen, the tokens of each, and how many had to be looked at for them."""

    prompts: tuple[Prompt, ...]
    tokens: tuple[int, ...]
    examined: int
    too_long: int


@dataclass(frozen=True, slots=True)
class ServedPass:
    """What one pass came to: wall-clock seconds, an answer for each prompt, CPU seconds by role, the client's too."""

    seconds: float
    traces: tuple[Reply, ...]
    cpu_s: Mapping[str, float]


class Subject(Protocol):
    """A server as a pass needs it."""

    async def ask(self, prompt: Prompt, cache_salt: str) -> Reply: ...
    async def scrape(self) -> None: ...
    def cpu(self) -> Reading: ...
    def client_cpu_s(self) -> float: ...


async def select_texts(
    texts: Sequence[Prompt], wanted: int, output_tokens: int, count: Callable[[Prompt], Awaitable[tuple[int, int]]]
) -> PromptTexts:
    """Take the first `wanted` prompts that fit the context; `count` says a prompt's tokens, and how many fit.

    Raises:
        ConfigError: There are not enough of them.
    """
    chosen: list[Prompt] = []
    lengths: list[int] = []
    examined = too_long = 0
    for text in texts:
        if len(chosen) == wanted:
            break
        examined += 1
        tokens, fits = await count(text)
        if tokens + output_tokens > fits:
            too_long += 1
        elif text not in chosen:
            chosen.append(text)
            lengths.append(tokens)
    if len(chosen) < wanted:
        problem = f"only {len(chosen)} of {examined} different prompts do: {too_long} are too long"
        raise ConfigError("--prompts", wanted, problem, "Ask for fewer, for fewer --tokens, or add prompts.")
    return PromptTexts(tuple(chosen), tuple(lengths), examined, too_long)


@dataclass(slots=True)
class Passes:
    """Makes passes over the `subjects`, by name. No prompt finds itself in a cache."""

    subjects: Mapping[str, Subject]
    scraped: frozenset[str]
    prompts: Sequence[Prompt]
    _salts: "itertools.count[int]" = field(default_factory=itertools.count)
    _scrape_in_s: dict[str, float] = field(default_factory=dict)

    async def make(self, key: PassKey) -> ServedPass:
        subject, salt = self.subjects[key.variant], f"pass-{next(self._salts)}"
        prompts = prompt_sets(self.prompts, key.concurrency)[key.prompt_set]
        before, client_before = subject.cpu(), subject.client_cpu_s()
        async with self._scraping(key.variant):
            seconds, replies = await closed_loop(lambda prompt: subject.ask(prompt, salt), prompts, key.concurrency)
        client_s = subject.client_cpu_s() - client_before
        return ServedPass(seconds, replies, {**used_s(before, subject.cpu()), CLIENT: client_s})

    @asynccontextmanager
    async def _scraping(self, name: str) -> AsyncIterator[None]:
        """Read the server's metrics every few seconds of the time that it is asked something."""
        started, due_s = time.monotonic(), self._scrape_in_s.get(name, 0.0)

        async def scrape() -> None:
            nonlocal due_s
            while True:
                await asyncio.sleep(max(0.0, started + due_s - time.monotonic()))
                due_s += SCRAPE_EVERY_S
                await self.subjects[name].scrape()

        scraping = asyncio.create_task(scrape()) if name in self.scraped else None
        try:
            yield
        finally:
            self._scrape_in_s[name] = max(0.0, due_s - (time.monotonic() - started))
            if scraping is not None:
                scraping.cancel()
                with suppress(asyncio.CancelledError):
                    await scraping


@dataclass(slots=True)
class Run:
    """One repeat of one side at one concurrency: all prompts once."""

    seconds: float = 0.0
    traces: list[Reply] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        return sum(reply.tokens for reply in self.traces)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    def cpu_s_per_1000_tokens(self, role: str) -> float:
        return 1000 * self.cpu_s.get(role, 0.0) / self.output_tokens

    @property
    def server_cpu_s_per_1000_tokens(self) -> float:
        """Of all the server's processes."""
        return sum(self.cpu_s_per_1000_tokens(role) for role in self.cpu_s if role != CLIENT)


Cell = tuple[str, int]
"""A side's name, and a concurrency."""


def served_runs(
    sides: Sequence[str], planned: Sequence[PassKey], made: Mapping[PassKey, ServedPass]
) -> dict[Cell, list[Run]]:
    """The repeats of every side at every concurrency, in the order of the prompts, whenever they were made.

    Raises:
        KeyError: A planned pass has not been made.
    """
    levels = dict.fromkeys(key.concurrency for key in planned)
    repeats = 1 + max(key.repeat for key in planned)
    runs = {(name, level): [Run() for _ in range(repeats)] for level in levels for name in sides}
    for key in planned:
        one, run = made[key], runs[key.variant, key.concurrency][key.repeat]
        run.seconds += one.seconds
        run.traces.extend(one.traces)
        for role, seconds in one.cpu_s.items():
            run.cpu_s[role] = run.cpu_s.get(role, 0.0) + seconds
    return runs
