from collections.abc import Mapping
from dataclasses import replace

import pytest

from peagle.router.dispatch import LIMITS, Dispatcher
from peagle.router.dispatch.policies.prefix_affinity import PREFIX_AFFINITY
from peagle.router.snapshot import ReplicaState
from support.depth.candidates import REQUEST, SNAPSHOT, dispatcher_of, routed

NAMES = "abcdefgh"
SHARING = replace(REQUEST, affinity_key=12345, prefix_tokens=900)


def affine(changed: Mapping[str, Mapping[str, object]] | None = None) -> Dispatcher:
    return dispatcher_of(PREFIX_AFFINITY, {name: (changed or {}).get(name, {}) for name in NAMES})


HOME, SECOND, THIRD = affine().fleet.homes.of_key(12345)


@pytest.mark.parametrize("now_s", [0.0, 60.0], ids=["fresh reports", "stale reports"])
def test_a_prefix_goes_home_even_if_other_replicas_are_idler(now_s: float) -> None:
    dispatcher = affine({HOME: {"running_requests": 4, "queued_prompt_tokens": 5000}})
    decision = routed(dispatcher, SHARING, now_s)
    assert (decision.replica_id, decision.reason) == (HOME, "home")
    assert len(decision.ranked) > 1, "a second candidate, in case the home refuses it"


def test_a_home_over_its_bound_hands_over_to_the_next_homes_and_then_to_the_least_loaded() -> None:
    dispatcher = affine()
    taken = [routed(dispatcher, SHARING, request_id=str(number)) for number in range(3 * LIMITS.home_free_requests + 1)]
    places = [decision.replica_id for decision in taken]
    assert places[:-1] == [home for home in (HOME, SECOND, THIRD) for _ in range(LIMITS.home_free_requests)]
    assert {decision.reason for decision in taken[:-1]} == {"home"}
    assert places[-1] not in {HOME, SECOND, THIRD}
    assert taken[-1].reason == "least-loaded"


@pytest.mark.parametrize(
    "away",
    [{"state": ReplicaState.DRAINING}, {"running_requests": SNAPSHOT.max_ongoing_requests}],
    ids=["draining", "full"],
)
def test_a_home_that_cannot_take_a_request_passes_it_to_the_next(away: dict[str, object]) -> None:
    decision = routed(affine({HOME: away}), SHARING)
    assert (decision.replica_id, decision.reason) == (SECOND, "home")


def test_a_home_without_kv_room_is_chosen_only_if_no_replica_has_room() -> None:
    tight = {"kv_capacity_tokens": 100}
    assert routed(affine({HOME: tight}), SHARING).reason == "least-loaded"
    nowhere = routed(affine(dict.fromkeys(NAMES, tight)), SHARING)
    assert (nowhere.replica_id, nowhere.reason) == (HOME, "queued")


def test_a_request_that_shares_nothing_goes_to_the_least_loaded() -> None:
    busy = {name: {"running_requests": 2} for name in NAMES}
    for idle in NAMES:
        decision = routed(affine({**busy, idle: {}}), SHARING, affinity_key=None, prefix_tokens=0)
        least = min(each.cost for each in decision.weighed)
        assert decision.reason == "least-loaded"
        assert decision.replica_id in {each.replica_id for each in decision.weighed if each.cost == least}
