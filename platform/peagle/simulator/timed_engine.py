"""An engine with realistic timing that computes nothing: it batches, prefills in chunks and caches prefixes."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from peagle.router.rates import EngineRates
from peagle.router.snapshot import ReplicaSnapshot, RouteRequest


@dataclass(frozen=True, slots=True)
class TimedModel:
    """Cost of a step: `step_s`, `request_step_s` for each request that gets a token, and the prefill chunk."""

    step_s: float = 0.02
    request_step_s: float = 0.001
    prefill_tokens_per_s: float = 4000.0
    chunk_tokens: int = 512
    max_running_requests: int = 16
    max_ongoing_requests: int = 256
    prefixes_cached: int = 8


@dataclass(slots=True)
class _Job:
    prompt_tokens: int
    prefill_left: int
    output_left: int
    ready: "asyncio.Queue[int]" = field(default_factory=asyncio.Queue)
    output_tokens: int = 0
    started_s: float = 0.0
    token_at_s: float = 0.0


class Prefilled(Protocol):
    """A request in a batch, with the prompt tokens that it has left to prefill."""

    prefill_left: int


J = TypeVar("J", bound=Prefilled)


def take_step(batch: Sequence[J], chunk_tokens: int) -> tuple[list[J], int]:
    """Prefill up to `chunk_tokens` in the batch's order; return the requests that get a token, and the tokens."""
    budget, given = chunk_tokens, []
    for job in batch:
        chunk = min(job.prefill_left, budget)
        job.prefill_left -= chunk
        budget -= chunk
        if job.prefill_left == 0:
            given.append(job)
    return given, chunk_tokens - budget


class TimedEngine:
    """Serves requests like vLLM's scheduler, without computing anything.

    Each step gives every prefilled request in the batch one token, and prefills a bounded chunk of the other prompts in
    order of arrival.

    Args:
        model: Cost of steps.
        speed: 0.5 takes twice as long for everything.
        now_s: The clock.
    """

    def __init__(self, model: TimedModel, speed: float = 1.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._model, self._speed, self._now_s = model, speed, now_s
        self._running: list[_Job] = []
        self._waiting: list[_Job] = []
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._stepping: asyncio.Task[None] | None = None
        self._rates = EngineRates()

    async def generate(self, request: RouteRequest, output_tokens: int) -> AsyncGenerator[int]:
        """Yield 1 with the first token, then all `output_tokens` with the last."""
        job = _Job(request.prompt_tokens, request.prompt_tokens - self._take_cached(request), output_tokens)
        self._waiting.append(job)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.create_task(self._run())
        try:
            yield await job.ready.get()
            if output_tokens > 1:
                yield await job.ready.get()
        finally:
            for jobs in (self._waiting, self._running):
                if job in jobs:
                    jobs.remove(job)

    def snapshot(self, replica_id: str) -> ReplicaSnapshot:
        """Return the snapshot of a replica with this engine."""
        open_jobs = [*self._running, *self._waiting]
        seen = ReplicaSnapshot(
            replica_id=replica_id,
            taken_at_s=0.0,
            running_requests=len(self._running),
            waiting_requests=len(self._waiting),
            queued_prompt_tokens=sum(job.prefill_left for job in open_jobs),
            max_running_requests=self._model.max_running_requests,
            max_ongoing_requests=self._model.max_ongoing_requests,
        )
        return self._rates.told(seen, self._now_s())

    def _take_cached(self, request: RouteRequest) -> int:
        key = request.affinity_key
        if key is None:
            return 0
        known = key in self._cached
        self._cached[key] = None
        self._cached.move_to_end(key)
        if len(self._cached) > self._model.prefixes_cached:
            self._cached.popitem(last=False)
        return min(request.prefix_tokens, request.prompt_tokens - 1) if known else 0

    async def _run(self) -> None:
        ends_s = self._now_s()
        while self._running or self._waiting:
            now_s = self._now_s()
            while self._waiting and len(self._running) < self._model.max_running_requests:
                job = self._waiting.pop(0)
                job.started_s = now_s
                self._running.append(job)
            seconds, given = self._step()
            # Steps follow each other without a gap, even if the event loop wakes late.
            ends_s = max(ends_s, now_s - seconds) + seconds
            await asyncio.sleep(max(0.0, ends_s - now_s))
            self._give(given)

    def _step(self) -> tuple[float, list[_Job]]:
        """Compute the next step; return its duration and the requests that get a token."""
        model = self._model
        given, prefilled = take_step(self._running, model.chunk_tokens)
        seconds = model.step_s + model.request_step_s * len(given) + prefilled / model.prefill_tokens_per_s
        return seconds / self._speed, given

    def _give(self, given: list[_Job]) -> None:
        now_s = self._now_s()
        going_on = [job for job in given if job.output_tokens]
        self._rates.stepped(len(going_on), len(going_on), sum(now_s - job.token_at_s for job in going_on), now_s)
        for job in given:
            job.output_tokens += 1
            job.output_left -= 1
            if job.output_tokens == 1:
                output_tokens = job.output_tokens + job.output_left
                self._rates.finished(job.prompt_tokens, now_s - job.started_s, output_tokens, now_s)
                job.ready.put_nowait(1)
            job.token_at_s = now_s
            if job.output_left == 0:
                if job.output_tokens > 1:
                    job.ready.put_nowait(job.output_tokens)
                if job in self._running:
                    self._running.remove(job)
