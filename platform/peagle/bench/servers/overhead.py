"""Overhead between an engine and its clients: the same closed-loop load on servers that take turns."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from peagle.bench.core.closed_loop import closed_loop
from peagle.bench.core.records import Run
from peagle.bench.servers.compared_servers import PEAGLE, Server, Side
from peagle.bench.servers.completions import Completions, Reply
from peagle.bench.servers.process_cpu import used_s
from peagle.bench.servers.served import CLIENT
from peagle.prompt_file import Prompt

SCRAPE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A side of the comparison with its server and client."""

    side: Side
    server: Server
    client: Completions

    async def prepare(self) -> None:
        """Switch its server to this side."""
        if self.side.server == PEAGLE:
            await self.client.count(self.side.is_counted)


@dataclass(slots=True)
class Passes:
    """Runs passes over the `subjects`, by name. No prompt is in a cache."""

    subjects: Mapping[str, Subject]
    _salts: "itertools.count[int]" = field(default_factory=itertools.count)
    _scrape_in_s: dict[str, float] = field(default_factory=dict)

    async def make(self, side: Side, prompts: Sequence[Prompt], concurrency: int) -> Run[Reply]:
        subject, salt = self.subjects[side.name], f"pass-{next(self._salts)}"
        await subject.prepare()
        before, client_before = subject.server.cpu(), _own_cpu_s()
        async with self._scraping(side.name):
            seconds, replies = await closed_loop(lambda prompt: subject.client.ask(prompt, salt), prompts, concurrency)
        client_s = _own_cpu_s() - client_before
        return Run(seconds, traces=replies, cpu_s={**used_s(before, subject.server.cpu()), CLIENT: client_s})

    @asynccontextmanager
    async def _scraping(self, name: str) -> AsyncIterator[None]:
        """Read the server's metrics every few seconds during a pass."""
        subject, started, due_s = self.subjects[name], time.monotonic(), self._scrape_in_s.get(name, 0.0)

        async def scrape() -> None:
            nonlocal due_s
            while True:
                await asyncio.sleep(max(0.0, started + due_s - time.monotonic()))
                due_s += SCRAPE_EVERY_S
                await subject.client.scrape()

        scraping = asyncio.create_task(scrape()) if subject.side.is_counted else None
        try:
            yield
        finally:
            self._scrape_in_s[name] = max(0.0, due_s - (time.monotonic() - started))
            if scraping is not None:
                scraping.cancel()
                with suppress(asyncio.CancelledError):
                    await scraping


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system
