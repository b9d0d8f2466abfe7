"""Cost of a dispatch decision, timed over a large fleet, with reports, prefix sharing and requests in flight."""

import random
import time
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from peagle.router.dispatch import Dispatcher
from peagle.router.snapshot import ReplicaSnapshot, RequestRates, RouteRequest

DECISIONS_PER_REPORT = 1000
_WARM_UP = 500


@dataclass(frozen=True, slots=True)
class DecisionTimes:
    """CPU time and elapsed time of single decisions; elapsed time includes other work on the machine."""

    replicas: int
    decisions: int
    cpu_us_p50: float
    cpu_us_p99: float
    elapsed_us_p50: float
    elapsed_us_p99: float


def time_decisions(replicas: int = 1000, decisions: int = 20_000) -> DecisionTimes:
    """Time `decisions` consecutive decisions of one dispatcher over a fleet of `replicas`.

    Every second request shares one of a hundred prefixes, and there are as many requests in flight as replicas.
    """
    chance = random.Random(0)
    dispatcher = _dispatcher([f"replica-{number}" for number in range(replicas)], chance)
    in_flight: deque[str] = deque()
    cpu_ns, elapsed_ns = [], []
    for number in range(decisions + _WARM_UP):
        now_s = number / DECISIONS_PER_REPORT
        if number % DECISIONS_PER_REPORT == 0:
            dispatcher.report(_reports(dispatcher, now_s, chance))
        request, draw = _request(number, chance), chance.getrandbits(64)
        start_ns, cpu_start_ns = time.perf_counter_ns(), time.thread_time_ns()
        dispatcher.dispatch(request, now_s, draw)
        cpu_ns.append(time.thread_time_ns() - cpu_start_ns)
        elapsed_ns.append(time.perf_counter_ns() - start_ns)
        in_flight.append(request.request_id)
        if len(in_flight) > replicas:
            dispatcher.ended(in_flight.popleft(), now_s)
    times_us = (np.percentile(times_ns[_WARM_UP:], (50, 99)) / 1000 for times_ns in (cpu_ns, elapsed_ns))
    return DecisionTimes(replicas, decisions, *np.concatenate([*times_us]).tolist())


def _dispatcher(names: list[str], chance: random.Random) -> Dispatcher:
    dispatcher = Dispatcher()
    dispatcher.set_members(names)
    dispatcher.set_dispatchers(4)
    rates = RequestRates.of({batch: 100.0 / (1.0 + batch / 32) for batch in (1, 256)})
    base = ReplicaSnapshot("", -1.0, prefill_tokens_per_s=8000.0, request_tokens_per_s=rates, output_tokens_mean=200.0)
    dispatcher.report(
        replace(base, replica_id=name, kv_capacity_tokens=chance.randrange(10**5, 10**6)) for name in names
    )
    return dispatcher


def _reports(dispatcher: Dispatcher, now_s: float, chance: random.Random) -> list[ReplicaSnapshot]:
    return [
        replace(
            seen, taken_at_s=now_s, running_requests=chance.randrange(32), queued_prompt_tokens=chance.randrange(8000)
        )
        for seen in dispatcher.fleet.snapshots.values()
    ]


def _request(number: int, chance: random.Random) -> RouteRequest:
    prompt_tokens, output_tokens = chance.randrange(500, 4000), chance.randrange(16, 512)
    if number % 2:
        return RouteRequest(str(number), prompt_tokens, output_tokens)
    return RouteRequest(str(number), prompt_tokens, output_tokens, chance.randrange(100), prefix_tokens=400)
