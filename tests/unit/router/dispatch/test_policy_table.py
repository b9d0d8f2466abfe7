"""Properties of every row of the table of dispatch policies, so that a new row needs no test here."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.config import ROUTING_POLICIES
from peagle.router.dispatch import (
    DECISION_REASONS,
    POLICIES,
    Exclusion,
    HomeUse,
    Policy,
    Route,
    RouteReason,
    ShedReason,
)
from peagle.router.snapshot import RequestRates
from support.depth.candidates import REQUEST, SNAPSHOT, dispatcher_of

NAMES = ["a", "b", "c", "d", "e"]
ALL = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def test_deployment_files_know_every_policy_and_rays_own() -> None:
    assert list(ROUTING_POLICIES) == [*POLICIES, "power-of-two"]


@ALL
def test_a_row_is_found_under_its_own_name_and_says_what_it_does(policy: Policy) -> None:
    assert POLICIES[policy.name] is policy
    assert policy.description
    assert policy.description == policy.description.strip(". ")


def test_decisions_are_counted_by_the_reasons_of_policies_turns_and_waiting() -> None:
    of_rows = {reason for policy in POLICIES.values() for reason in policy.reasons}
    assert of_rows >= {policy.reason for policy in POLICIES.values()}
    assert {*of_rows, *(f"wait-{reason}" for reason in ShedReason), "failed", "turn"} == DECISION_REASONS


@ALL
@given(
    st.sampled_from([0.0, 60.0]),
    st.none() | st.integers(0, 2**64 - 1),
    st.sampled_from([SNAPSHOT.request_tokens_per_s, RequestRates()]),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
)
def test_every_route_gives_a_reason_of_its_policy(
    policy: Policy, now_s: float, key: int | None, rates: RequestRates, kv_usage_ratio: float, draw: int
) -> None:
    told = {"request_tokens_per_s": rates, "kv_usage_ratio": kv_usage_ratio, "kv_capacity_tokens": 2000}
    dispatcher = dispatcher_of(policy, dict.fromkeys(NAMES, told))
    request = replace(REQUEST, affinity_key=key, prefix_tokens=500)
    for _ in range(8):
        decision = dispatcher.dispatch(request, now_s, draw)
        assert isinstance(decision, Route)
        assert decision.reason in policy.reasons
        assert (decision.reason == RouteReason.HOME) <= (key is not None and policy.homes is not HomeUse.NONE)


@ALL
def test_no_policy_returns_a_request_to_a_replica_that_failed_it(policy: Policy) -> None:
    dispatcher, chance = dispatcher_of(policy, {name: {} for name in NAMES}), random.Random(1)
    tried: frozenset[str] = frozenset()
    for _ in NAMES:
        decision = dispatcher.dispatch(replace(REQUEST, affinity_key=5, tried=tried), 0.0, chance.getrandbits(64))
        assert isinstance(decision, Route)
        assert decision.replica_id not in tried
        tried |= {decision.replica_id}
    last = dispatcher.dispatch(replace(REQUEST, tried=tried), 0.0, 0)
    assert {each.excluded for each in last.weighed} == {Exclusion.TRIED}
