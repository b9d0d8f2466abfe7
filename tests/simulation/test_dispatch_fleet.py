"""Dispatch judged by what it does to a fleet over time, in a simulation that repeats exactly."""

from functools import cache

import pytest

from peagle.simulator.simulated_fleet import Outcome, Policy, PowerOfTwo, Replica, Simulation, Soonest, mixed_jobs

REPLICAS, SLOW = 8, "replica-3"
# Requests per second: half, two thirds and most of what the fleet can do.
LIGHT, MEDIUM, HEAVY = 20.0, 25.0, 30.0
SEEDS = (1, 2, 3)


@cache
def outcome(policy: type[Policy], per_s: float, seed: int) -> Outcome:
    names = [f"replica-{number}" for number in range(REPLICAS)]
    replicas = [Replica(name, speed=0.5 if name == SLOW else 1.0) for name in names]
    return Simulation(replicas, policy(replicas)).run(mixed_jobs(1000, per_s, seed))


def ttft_s_p95(policy: type[Policy], per_s: float) -> float:
    """Time to first token below which 95 of 100 requests stay, over all seeds."""
    every = sorted(ttft_s for seed in SEEDS for ttft_s in outcome(policy, per_s, seed).ttft_s)
    return every[int(0.95 * len(every))]


def tokens_per_s(policy: type[Policy], per_s: float) -> float:
    return sum(outcome(policy, per_s, seed).tokens_per_s for seed in SEEDS) / len(SEEDS)


@pytest.mark.parametrize("per_s", [LIGHT, MEDIUM, HEAVY])
def test_first_tokens_come_sooner_than_by_turns_or_by_the_shorter_of_two_queues(per_s: float) -> None:
    assert ttft_s_p95(Soonest, per_s) <= 0.8 * min(ttft_s_p95(Policy, per_s), ttft_s_p95(PowerOfTwo, per_s))


@pytest.mark.parametrize("per_s", [LIGHT, MEDIUM, HEAVY])
def test_throughput_is_not_lower(per_s: float) -> None:
    assert tokens_per_s(Soonest, per_s) >= max(tokens_per_s(Policy, per_s), tokens_per_s(PowerOfTwo, per_s))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_replica_of_half_the_speed_gets_at_most_half_of_the_others_share(seed: int) -> None:
    sent = outcome(Soonest, HEAVY, seed).sent
    others = [number for name, number in sent.items() if name != SLOW]
    assert 0 < sent[SLOW] <= 0.5 * sum(others) / len(others)
    assert max(others) <= 1.5 * sum(others) / len(others)


def test_a_run_repeats_exactly() -> None:
    first = outcome(Soonest, LIGHT, 1)
    outcome.cache_clear()
    assert outcome(Soonest, LIGHT, 1) == first


def test_nothing_is_left_in_flight_when_every_request_has_ended() -> None:
    replicas = [Replica(f"replica-{number}") for number in range(REPLICAS)]
    policy = Soonest(replicas)
    assert Simulation(replicas, policy).run(mixed_jobs(300, MEDIUM, seed=5)).sent.total() == 300
    assert [dispatcher.open_requests for dispatcher in policy.dispatchers] == [0, 0, 0, 0]
    assert all(replica.ongoing == 0 for replica in replicas)
