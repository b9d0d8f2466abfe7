"""Dispatch evaluated by its effect on a fleet over time, in a simulation that repeats exactly."""

from collections.abc import Callable, Sequence
from functools import cache, partial

import pytest

from peagle.router.dispatch import POLICIES
from peagle.simulator.simulated_fleet import (
    ByPolicy,
    Dispatch,
    Outcome,
    PowerOfTwo,
    Replica,
    Simulation,
    client_jobs,
    mixed_jobs,
)

REPLICAS, SLOW = 8, "replica-3"
# Requests per second: half, two thirds and most of the fleet's capacity.
LIGHT, MEDIUM, HEAVY = 20.0, 25.0, 30.0
SEEDS = (1, 2, 3)

TURNS, POWER_OF_TWO, SOONEST = "turns", "power-of-two", "soonest"
WAYS: dict[str, Callable[[Sequence[Replica]], Dispatch]] = {
    TURNS: Dispatch,
    POWER_OF_TWO: PowerOfTwo,
    **{name: partial(ByPolicy, policy=policy) for name, policy in POLICIES.items()},
}


@cache
def outcome(way: str, per_s: float, seed: int) -> Outcome:
    names = [f"replica-{number}" for number in range(REPLICAS)]
    replicas = [Replica(name, speed=0.5 if name == SLOW else 1.0) for name in names]
    return Simulation(replicas, WAYS[way](replicas)).run(mixed_jobs(1000, per_s, seed))


def ttft_s_p95(way: str, per_s: float) -> float:
    """Return the 95th percentile of the time to first token, over all seeds."""
    every = sorted(ttft_s for seed in SEEDS for ttft_s in outcome(way, per_s, seed).ttft_s)
    return every[int(0.95 * len(every))]


def tokens_per_s(way: str, per_s: float) -> float:
    return sum(outcome(way, per_s, seed).tokens_per_s for seed in SEEDS) / len(SEEDS)


@pytest.mark.parametrize("per_s", [LIGHT, MEDIUM, HEAVY])
def test_first_tokens_come_sooner_than_by_turns_or_by_the_shorter_of_two_queues(per_s: float) -> None:
    assert ttft_s_p95(SOONEST, per_s) <= 0.8 * min(ttft_s_p95(TURNS, per_s), ttft_s_p95(POWER_OF_TWO, per_s))


@pytest.mark.parametrize("per_s", [LIGHT, MEDIUM, HEAVY])
def test_throughput_is_not_lower(per_s: float) -> None:
    assert tokens_per_s(SOONEST, per_s) >= max(tokens_per_s(TURNS, per_s), tokens_per_s(POWER_OF_TWO, per_s))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_of_half_the_speed_gets_at_most_half_of_the_others_share(seed: int) -> None:
    sent = outcome(SOONEST, HEAVY, seed).sent
    others = [number for name, number in sent.items() if name != SLOW]
    assert 0 < sent[SLOW] <= 0.5 * sum(others) / len(others)
    assert max(others) <= 1.5 * sum(others) / len(others)


def test_a_run_repeats_exactly() -> None:
    first = outcome(SOONEST, LIGHT, 1)
    outcome.cache_clear()
    assert outcome(SOONEST, LIGHT, 1) == first


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("per_s", [LIGHT, HEAVY])
def test_under_every_policy_each_request_is_served_and_nothing_is_left_in_flight(policy: str, per_s: float) -> None:
    replicas = [Replica(f"replica-{number}", 0.5 if number == 3 else 1.0) for number in range(REPLICAS)]
    way = ByPolicy(replicas, POLICIES[policy])
    jobs = mixed_jobs(300, per_s, seed=5)
    assert Simulation(replicas, way).run(jobs).sent.total() == 300
    assert [job.generated for job in jobs] == [job.output_tokens for job in jobs]
    assert [dispatcher.open_requests for dispatcher in way.dispatchers] == [0, 0, 0, 0]
    assert all(replica.ongoing == 0 for replica in replicas)


def of_clients(
    policy: str, replicas: Sequence[Replica], clients: int, dispatchers: int, key: int | None = None, prompt: int = 100
) -> Outcome:
    jobs = client_jobs(clients, 60, seed=1, prompt_tokens=prompt, key=key)
    return Simulation(replicas, ByPolicy(replicas, POLICIES[policy], dispatchers)).run(jobs)


@pytest.mark.parametrize("dispatchers", [1, 4])
@pytest.mark.parametrize("each", [4, 8])
@pytest.mark.parametrize("number", [2, 4, 8])
def test_a_replica_that_was_slow_for_two_seconds_has_its_share_again_after_ten(
    number: int, each: int, dispatchers: int
) -> None:
    """It gets no requests while it looks slow, so its own steps never show that it is no longer slow."""
    replicas = [Replica(f"replica-{n}", slow_until_s=0.0 if n else 2.0, measures=True) for n in range(number)]
    sent = of_clients(SOONEST, replicas, each * number, dispatchers).sent_from(10.0)
    assert sent["replica-0"] >= 0.5 * sent.total() / number, sent


@pytest.mark.parametrize("dispatchers", [1, 4])
@pytest.mark.parametrize("number", [2, 4, 8])
def test_a_replica_that_stays_slow_has_a_smaller_share_all_along(number: int, dispatchers: int) -> None:
    replicas = [Replica(f"replica-{n}", speed=1.0 if n else 0.5, measures=True) for n in range(number)]
    sent = of_clients(SOONEST, replicas, 8 * number, dispatchers).sent
    assert 0 < sent["replica-0"] <= 0.5 * (sent.total() - sent["replica-0"]) / (number - 1), sent


@pytest.mark.parametrize("policy", [SOONEST, "prefix-affinity"])
@pytest.mark.parametrize("dispatchers", [1, 2, 4])
@pytest.mark.parametrize("prompt", [100, 1000])
def test_clients_with_one_prompt_keep_both_replicas_at_work(policy: str, dispatchers: int, prompt: int) -> None:
    def outcome(key: int | None) -> Outcome:
        replicas = [Replica(f"replica-{number}", measures=True) for number in range(2)]
        return of_clients(policy, replicas, 12, dispatchers, key, prompt)

    same, different = outcome(7919), outcome(None)
    assert min(same.sent["replica-0"], same.sent["replica-1"]) >= 0.3 * same.sent.total(), same.sent
    assert same.ttft_s_p95 <= different.ttft_s_p95
    assert same.seconds <= different.seconds
