"""A fleet whose replicas draft, each with the depth rule around it, under requests that differ in acceptance."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from peagle.router.depth import batch_ranges, draft_plan, request_tokens_per_s
from peagle.router.snapshot import ReplicaSnapshot, RouteRequest
from peagle.simulator.depth_loop import WholeRule
from peagle.simulator.depth_replica import Replica
from peagle.simulator.simulated_fleet import Job


class QueuedReplica(Replica):
    """An engine that takes its requests from a queue, in order."""

    def __init__(self, **options: Any) -> None:
        self.queue: list[Job] = []
        self.jobs: dict[int, Job] = {}
        super().__init__(load=lambda _: 0, **options)

    def leans(self, count: int) -> Any:
        self._joined, self.queue = self.queue[:count], self.queue[count:]
        self.jobs |= {self._came + place: job for place, job in enumerate(self._joined)}
        return np.array([job.lean for job in self._joined])

    def answers(self, count: int) -> Any:
        return np.array([job.output_tokens for job in self._joined])


@dataclass
class DraftingReplica:
    """One replica of a fleet: an engine of known acceptance and step times, and the depth rule around it.

    A prompt is prefilled whole in the step that its request joins.

    Attributes:
        told: When it reported, and how many tokens it had given by then.
    """

    replica_id: str
    engine: QueuedReplica
    rule: WholeRule
    is_stepping: bool = False
    told: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._batch_max = self.rule.settings.batch_max
        sizes = [batches.at for batches in batch_ranges(self._batch_max)]
        self._calibration = tuple(self.engine.timed(*point) for point in product(sizes, self.engine.depths))

    @property
    def ongoing(self) -> int:
        return len(self.engine.left) + len(self.engine.queue)

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        """Report, and apply the plan that answers it."""
        engine, rule = self.engine, self.rule
        plan = rule.step(replace(engine.report(), calibration=self._calibration), now_s)
        engine.apply(plan.table)
        self.told.append((now_s, engine.tokens))
        return ReplicaSnapshot(
            replica_id=self.replica_id,
            taken_at_s=now_s,
            running_requests=len(engine.left),
            waiting_requests=len(engine.queue),
            queued_prompt_tokens=sum(job.request.prompt_tokens for job in engine.queue),
            max_running_requests=self._batch_max,
            prefill_tokens_per_s=1.0 / engine.prompt_token_s,
            request_tokens_per_s=request_tokens_per_s(rule.state, rule.settings, now_s),
            output_tokens_mean=engine.output_tokens,
            drafts=draft_plan(rule.state),
        )

    def take(self, job: Job) -> None:
        job.replica_id = self.replica_id
        self.engine.queue.append(job)

    def step(self, now_s: float) -> tuple[float, list[Job]]:
        """Do one step; return how long it takes and who gets tokens."""
        engine = self.engine
        engine.now_s = now_s
        engine.one_step(min(self.ongoing, self._batch_max))
        left = dict(zip(engine.names.tolist(), engine.left.tolist(), strict=True))
        given = list(engine.jobs.values())
        for name, job in list(engine.jobs.items()):
            job.generated = job.output_tokens - left.get(name, 0)
            if name not in left:
                del engine.jobs[name]
                job.drafted = engine.ended.pop(name)
        return engine.now_s - now_s, given

    def give(self, given: Sequence[Job], now_s: float) -> list[Job]:
        """Give them their tokens; return those that end with them."""
        for job in given:
            job.first_token_s = now_s if job.first_token_s is None else job.first_token_s
        return [job for job in given if job.generated == job.output_tokens]


def code_and_noise(
    clients: int, each: int, seed: int, prompt_tokens: int, output_tokens: int, lean: float
) -> list[Job]:
    """The first requests of `clients`, each of which asks `each` times; by chance half are code and half noise.

    All of a kind have one system prompt. `lean` is that of noise.
    """
    chance, firsts = random.Random(seed), []
    for client in range(clients):
        job: Job | None = None
        for turn in reversed(range(each)):
            noise = chance.random() < 0.5
            tokens = chance.randint(output_tokens // 2, output_tokens * 3 // 2)
            request = RouteRequest(f"client-{client}-{turn}", prompt_tokens, output_tokens, kinds=(int(noise),))
            job = Job(request, chance.uniform(0.0, 2.0), tokens, client, then=job, lean=lean if noise else 0.0)
        firsts += [job] if job is not None else []
    return firsts
