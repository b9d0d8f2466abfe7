"""A replacement for a measured engine: a generator of numbers that counts its calls."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts
from peagle.bench.engines.engine_plan import EnginePlan
from peagle.router.snapshot import StepTime

OUTPUT_TOKENS = 16


class Generator:
    """Repeats a prompt that starts with 0, and counts up from any other; `log` records each prepared pass."""

    context_tokens = 40
    requests_at_once = 64
    vocabulary = 128

    def __init__(self, log: list[tuple[str, int]], name: str, plan: EnginePlan | None = None) -> None:
        self.log, self.name, self.plan = log, name, plan
        self.depth, self.made, self.total = 0, 0, NO_DRAFTS
        self.warm = False

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def counts(self) -> DraftCounts:
        return self.total

    def steps(self) -> int:
        return self.made

    async def prepare(self, depth: int) -> None:
        self.depth = depth
        self.log.append((self.name, depth))

    @asynccontextmanager
    async def adapting(self, held: int | None = None) -> AsyncIterator[None]:
        yield

    def settled_s(self, concurrency: int, since_s: float) -> float:
        return 0.0

    async def settle(self) -> None:
        pass

    async def warm_up(self) -> None:
        self.warm = True

    async def step_cells(self) -> tuple[StepTime, ...]:
        assert self.warm
        return ()

    async def stream(self, prompt: list[int]) -> AsyncIterator[Sequence[int]]:
        drafted = (1,) * self.depth
        for step in range(OUTPUT_TOKENS):
            self.made += 1
            if self.depth:
                self.total += DraftCounts(1, drafted, (1, *(0,) * (self.depth - 1)))
            yield [prompt[0] + step if prompt[0] else 0]

    def stop(self) -> None:
        self.log.append((self.name, -1))


class Started(Generator):
    """An engine that a session starts from a plan; `calls` records all calls, `ends_after` bounds the passes."""

    calls: list[tuple[str, int]]
    ends_after: int | None = None

    @classmethod
    def start(cls, plan: EnginePlan, output_tokens: int, log: Path) -> Self:
        return cls(cls.calls, plan.name, plan)

    async def prepare(self, depth: int) -> None:
        if self.ends_after is not None and len(self.calls) >= self.ends_after:
            raise KeyboardInterrupt
        await super().prepare(depth)


def started(ends_after: int | None = None) -> Any:
    """A class of engines for one start of `peagle bench`, which Ctrl-C ends after this many passes."""
    return type("Started", (Started,), {"calls": [], "ends_after": ends_after})
