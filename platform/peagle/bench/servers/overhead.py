"""What lies between an engine and its clients: the same closed-loop load on servers that take turns, pass by pass."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from peagle.bench.core.closed_loop import closed_loop
from peagle.bench.core.records import PassKey, Run
from peagle.bench.servers.completions import Reply
from peagle.bench.servers.process_cpu import Reading, used_s
from peagle.bench.servers.served import CLIENT
from peagle.prompt_file import Prompt

SCRAPE_EVERY_S = 5.0


class Subject(Protocol):
    """A side of the comparison as a pass needs it; `prepare` makes its server that side."""

    async def prepare(self) -> None: ...
    async def ask(self, prompt: Prompt, cache_salt: str) -> Reply: ...
    async def scrape(self) -> None: ...
    def cpu(self) -> Reading: ...
    def client_cpu_s(self) -> float: ...


@dataclass(slots=True)
class Passes:
    """Makes passes over the `subjects`, by name. No prompt finds itself in a cache."""

    subjects: Mapping[str, Subject]
    scraped: frozenset[str]
    _salts: "itertools.count[int]" = field(default_factory=itertools.count)
    _scrape_in_s: dict[str, float] = field(default_factory=dict)

    async def make(self, key: PassKey, prompts: Sequence[Prompt]) -> Run[Reply]:
        subject, salt = self.subjects[key.variant], f"pass-{next(self._salts)}"
        await subject.prepare()
        before, client_before = subject.cpu(), subject.client_cpu_s()
        async with self._scraping(key.variant):
            seconds, replies = await closed_loop(lambda prompt: subject.ask(prompt, salt), prompts, key.concurrency)
        client_s = subject.client_cpu_s() - client_before
        return Run(seconds, traces=replies, cpu_s={**used_s(before, subject.cpu()), CLIENT: client_s})

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
