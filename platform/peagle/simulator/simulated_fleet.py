"""A small discrete-event simulation of replicas that batch as vLLM does, for testing pure dispatch.

A replica works in steps: each gives every prefilled request in its batch one token, and prefills a bounded chunk of the
other prompts in order of arrival. Time is simulated and randomness is seeded, so a run always repeats.
"""

import heapq
import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf
from typing import Any

from peagle.router.dispatch import SOONEST, Board, Dispatcher, DispatcherReport, EndedDrafts, Policy, Route
from peagle.router.rates import EngineRates
from peagle.router.snapshot import ReplicaSnapshot, RequestRates, RouteRequest
from peagle.simulator.timed_engine import take_step

STEP_S, REQUEST_STEP_S, PREFILL_TOKENS_PER_S = 0.010, 0.0005, 8000.0
CHUNK_TOKENS, MAX_RUNNING, MAX_ONGOING = 512, 32, 256
PREFIXES_CACHED, BLOCK_TOKENS = 12, 16
SLOW_START = 0.25
REPORT_EVERY_S, REPORT_DELAY_S = 0.5, 0.1


@dataclass
class Job:
    """One request in the simulation.

    `then` is its client's next request, which arrives when this one ends. `lean` is the offset of its acceptance from
    the mean, as a part of the distance to 0 or 1. `drafted` are its drafts, their tokens, and those accepted.
    """

    request: RouteRequest
    arrives_s: float
    output_tokens: int
    dispatcher: int
    then: "Job | None" = None
    lean: float = 0.0
    drafted: tuple[int, int, int] = (0, 0, 0)
    prefill_left: int = 0
    computed_tokens: int = 0
    generated: int = 0
    started_s: float = 0.0
    first_token_s: float | None = None
    last_token_s: float = 0.0
    replica_id: str = ""


@dataclass
class Replica:
    """One simulated replica.

    Attributes:
        speed: 0.5 takes twice as long for every step.
        slow_until_s: Until then it runs at `SLOW_START` of that speed.
        measures: Whether it reports measured rates, as an engine does, instead of the true ones.
    """

    replica_id: str
    speed: float = 1.0
    slow_until_s: float = 0.0
    measures: bool = False
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    is_stepping: bool = False
    rates: EngineRates = field(default_factory=EngineRates)

    @property
    def ongoing(self) -> int:
        return len(self.running) + len(self.waiting)

    def snapshot(self, now_s: float) -> ReplicaSnapshot:
        rates = {batch: self.speed / (STEP_S + batch * REQUEST_STEP_S) for batch in (1, MAX_RUNNING)}
        seen = ReplicaSnapshot(
            replica_id=self.replica_id,
            taken_at_s=now_s,
            running_requests=len(self.running),
            waiting_requests=len(self.waiting),
            queued_prompt_tokens=sum(job.prefill_left for job in (*self.running, *self.waiting)),
            max_running_requests=MAX_RUNNING,
            max_ongoing_requests=MAX_ONGOING,
            prefill_tokens_per_s=self.speed * PREFILL_TOKENS_PER_S,
            request_tokens_per_s=RequestRates.of(rates),
            output_tokens_mean=120.0,
        )
        return self.rates.told(seen, now_s) if self.measures else seen

    def take(self, job: Job) -> None:
        request, cached = job.request, 0
        if request.affinity_key is not None:
            # vLLM caches whole blocks, and computes at least a prompt's last token.
            blocks = min(request.prefix_tokens, request.prompt_tokens - 1) // BLOCK_TOKENS
            cached = blocks * BLOCK_TOKENS if request.affinity_key in self.cache else 0
            self.cache[request.affinity_key] = None
            self.cache.move_to_end(request.affinity_key)
            if len(self.cache) > PREFIXES_CACHED:
                self.cache.popitem(last=False)
        job.replica_id, job.computed_tokens = self.replica_id, request.prompt_tokens - cached
        job.prefill_left = job.computed_tokens
        self.waiting.append(job)

    def step(self, now_s: float) -> tuple[float, list[Job]]:
        """Run one step; return its duration and the requests that get a token."""
        while self.waiting and len(self.running) < MAX_RUNNING:
            job = self.waiting.pop(0)
            job.started_s = now_s
            self.running.append(job)
        given, prefilled = take_step(self.running, CHUNK_TOKENS)
        seconds = STEP_S + REQUEST_STEP_S * len(given) + prefilled / PREFILL_TOKENS_PER_S
        return seconds / (self.speed * (SLOW_START if now_s < self.slow_until_s else 1.0)), given

    def give(self, given: Sequence[Job], now_s: float) -> list[Job]:
        """Give each request its token; return those that end with it."""
        going_on = [job for job in given if job.generated]
        self.rates.stepped(len(going_on), len(going_on), sum(now_s - job.last_token_s for job in going_on), now_s)
        for job in given:
            job.generated += 1
            job.last_token_s = now_s
            job.first_token_s = now_s if job.first_token_s is None else job.first_token_s
        ended = [job for job in given if job.generated == job.output_tokens]
        for job in ended:
            self.running.remove(job)
            self.rates.finished(job.computed_tokens, (job.first_token_s or now_s) - job.started_s, job.generated, now_s)
        return ended


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    ttft_s: list[float]
    seconds: float
    tokens: int
    jobs: Sequence[Job] = field(repr=False, compare=False)

    @property
    def sent(self) -> Counter[str]:
        return self.sent_from(0.0)

    def sent_from(self, from_s: float) -> Counter[str]:
        """Count the requests that arrived from `from_s` on, by replica."""
        return Counter(job.replica_id for job in self.jobs if job.arrives_s >= from_s)

    @property
    def ttft_s_p95(self) -> float:
        return sorted(self.ttft_s)[int(0.95 * len(self.ttft_s))]

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Dispatch:
    """A way to dispatch requests. This one uses round robin."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._turn = count()

    def choose(self, job: Job, now_s: float, replicas: Sequence[Replica]) -> str:
        return replicas[next(self._turn) % len(replicas)].replica_id

    def ended(self, job: Job, now_s: float) -> None: ...

    def report(self, snapshots: Sequence[ReplicaSnapshot]) -> None: ...


class PowerOfTwo(Dispatch):
    """Chooses from two random replicas the one with fewer requests at that moment."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._random = random.Random(2)

    def choose(self, job: Job, now_s: float, replicas: Sequence[Replica]) -> str:
        return min(self._random.sample(list(replicas), 2), key=lambda replica: replica.ongoing).replica_id


class ByPolicy(Dispatch):
    """The real dispatcher in several processes, which only see delayed reports."""

    def __init__(self, replicas: Sequence[Replica], policy: Policy = SOONEST, dispatchers: int = 4) -> None:
        self._random = random.Random(3)
        self._board = Board()
        self._ended: list[EndedDrafts] = []
        self.dispatchers = [Dispatcher(policy) for _ in range(dispatchers)]
        for dispatcher in self.dispatchers:
            dispatcher.set_members(replica.replica_id for replica in replicas)
            dispatcher.set_dispatchers(dispatchers)

    def choose(self, job: Job, now_s: float, replicas: Sequence[Replica]) -> str:
        dispatcher = self.dispatchers[job.dispatcher % len(self.dispatchers)]
        decision = dispatcher.dispatch(job.request, now_s, self._random.getrandbits(64))
        assert isinstance(decision, Route), decision
        return decision.replica_id

    def ended(self, job: Job, now_s: float) -> None:
        self.dispatchers[job.dispatcher % len(self.dispatchers)].ended(job.request.request_id, now_s)
        self._ended += [EndedDrafts(kind, *job.drafted) for kind in job.request.kinds if job.drafted[0]]

    def report(self, snapshots: Sequence[ReplicaSnapshot]) -> None:
        now_s = 0.0
        for snapshot in snapshots:
            now_s = snapshot.taken_at_s
            self._board.report(snapshot, now_s, self._ended)
            self._ended.clear()
        news = self._board.news(DispatcherReport("every"), now_s)
        for dispatcher in self.dispatchers:
            dispatcher.set_right_ratios(news.right_ratios)
            dispatcher.report(news.received(now_s))


class Simulation:
    """Runs jobs through replicas with one way to dispatch."""

    def __init__(self, replicas: Sequence[Any], dispatch: Dispatch) -> None:
        self.replicas, self.dispatch = replicas, dispatch
        self._by_id = {replica.replica_id: replica for replica in replicas}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._open = 0
        self._ended_at_s = 0.0

    def run(self, jobs: Sequence[Job], until_s: float = inf) -> Outcome:
        """Run until all jobs have ended, or until `until_s`."""
        every = [job for first in jobs for job in _chain(first)]
        self._open = len(every)
        for job in jobs:
            self._at(job.arrives_s, partial(self._arrive, job))
        self._report(0.0)
        while self._open and self._events[0][0] < until_s:
            now_s, _, event = heapq.heappop(self._events)
            event(now_s)
        first = [job.first_token_s - job.arrives_s for job in every if job.first_token_s is not None]
        assert len(first) == len(every) or until_s < inf
        return Outcome(first, self._ended_at_s, sum(job.generated for job in every), every)

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._order), event))

    def _report(self, now_s: float) -> None:
        snapshots = [replica.snapshot(now_s) for replica in self.replicas]
        self._at(now_s + REPORT_DELAY_S, lambda _: self.dispatch.report(snapshots))
        self._at(now_s + REPORT_EVERY_S, self._report)

    def _arrive(self, job: Job, now_s: float) -> None:
        replica = self._by_id[self.dispatch.choose(job, now_s, self.replicas)]
        replica.take(job)
        if not replica.is_stepping:
            self._step(replica, now_s)

    def _step(self, replica: Replica, now_s: float) -> None:
        replica.is_stepping = replica.ongoing > 0
        if replica.is_stepping:
            seconds, given = replica.step(now_s)
            self._at(now_s + seconds, lambda end_s: self._settle(replica, given, end_s))

    def _settle(self, replica: Replica, given: Sequence[Job], now_s: float) -> None:
        for job in replica.give(given, now_s):
            self.dispatch.ended(job, now_s)
            self._open -= 1
            self._ended_at_s = now_s
            if job.then is not None:
                job.then.arrives_s = now_s
                self._at(now_s, partial(self._arrive, job.then))
        self._step(replica, now_s)


def _chain(job: Job | None) -> Iterator[Job]:
    while job is not None:
        yield job
        job = job.then


def client_jobs(
    clients: int, each: int, seed: int, prompt_tokens: int = 100, output_tokens: int = 64, key: int | None = None
) -> list[Job]:
    """Return the first requests of `clients`, each of which sends `each` requests in sequence.

    With `key` all share one prompt; without, no prompts start alike.
    """
    chance, firsts = random.Random(seed), []
    for client in range(clients):
        job: Job | None = None
        for turn in reversed(range(each)):
            shared = 0 if key is None else prompt_tokens
            name = f"client-{client}-{turn}"
            request = RouteRequest(name, prompt_tokens, output_tokens, key, shared)
            job = Job(request, chance.uniform(0.0, 0.1), output_tokens, dispatcher=client, then=job)
        firsts += [job] if job is not None else []
    return firsts


def mixed_jobs(number: int, per_s: float, seed: int, prefixes: int = 24, prefix_tokens: int = 1000) -> list[Job]:
    """Return short and long requests at random times; about half start with one of `prefixes` shared prefixes."""
    chance, now_s, jobs = random.Random(seed), 0.0, []
    for place in range(number):
        now_s += chance.expovariate(per_s)
        is_long = chance.random() < 0.3
        prompt = chance.randint(1500, 3000) if is_long else chance.randint(50, 300)
        output = chance.randint(200, 400) if is_long else chance.randint(16, 64)
        key = chance.randrange(prefixes) * 7919 if chance.random() < 0.5 else None
        shared = 0 if key is None else prefix_tokens
        # Answer lengths are unknown in advance; the dispatcher gets the mean of the kind.
        expected = 300 if is_long else 40
        request = RouteRequest(f"request-{place}", prompt + shared, expected, key, shared)
        jobs.append(Job(request, now_s, output, dispatcher=chance.randrange(4)))
    return jobs
