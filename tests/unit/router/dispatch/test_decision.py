import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.router.dispatch import (
    LIMITS,
    SOONEST,
    Dispatcher,
    Exclusion,
    Fleet,
    InFlight,
    Limits,
    Route,
    RouteReason,
    Shed,
    ShedReason,
    decide,
)
from peagle.router.dispatch.decision import RETRY_AFTER_MAX_S, RETRY_AFTER_MIN_S, RETRY_AFTER_UNKNOWN_S
from peagle.router.dispatch.homes import HOMES
from peagle.router.snapshot import ReplicaSnapshot, ReplicaState, RequestRates, RouteRequest

NOW_S = 100.0
KEY = 12345
REQUEST = RouteRequest("r", prompt_tokens=1000, output_tokens=100)
SHARING = replace(REQUEST, affinity_key=KEY, prefix_tokens=800)
# Each request gets 100 tokens/s alone, and 5 less for each other request in the batch.
SNAPSHOT = ReplicaSnapshot(
    "",
    taken_at_s=NOW_S,
    max_running_requests=16,
    max_ongoing_requests=32,
    prefill_tokens_per_s=1000.0,
    request_tokens_per_s=RequestRates.of({batch: 105.0 - 5.0 * batch for batch in range(1, 17)}),
    output_tokens_mean=200.0,
    kv_capacity_tokens=100_000,
)


def fleet_of(**changes: ReplicaSnapshot | dict[str, object] | None) -> Fleet:
    """Return a fleet with one replica per name: None has not reported, a dict holds the changes to `SNAPSHOT`."""
    seen = [replace(SNAPSHOT, replica_id=name, **how) for name, how in changes.items() if how is not None]
    return Fleet.of(changes).reported(seen)


def routed(request: RouteRequest, fleet: Fleet, in_flight: InFlight | None = None, draw: int = 0) -> Route:
    decision = decide(request, fleet, in_flight or InFlight(), NOW_S, draw)
    assert isinstance(decision, Route), decision
    return decision


def shed(request: RouteRequest, fleet: Fleet) -> Shed:
    decision = decide(request, fleet, InFlight(), NOW_S, 0)
    assert isinstance(decision, Shed), decision
    return decision


@pytest.mark.parametrize("draw", range(6))
def test_the_replica_that_finishes_soonest_is_chosen(draw: int) -> None:
    busy, light = {"running_requests": 12}, {"running_requests": 2}
    fleet = fleet_of(queued={"queued_prompt_tokens": 5000}, busy=busy, light=light)
    decision = routed(REQUEST, fleet, draw=draw)
    assert (decision.replica_id, decision.reason) == ("light", SOONEST.reason)
    assert decision.ranked == ("light", "busy", "queued")
    assert {each.replica_id: each.cost for each in decision.weighed} == {
        "light": pytest.approx(1.0 + 100 / 90),
        "busy": pytest.approx(1.0 + 100 / 40),
        "queued": pytest.approx(5.0 + 1.0 + 100 / 100),
    }


def test_a_slower_replica_is_weighed_with_its_own_rates() -> None:
    slow = {"prefill_tokens_per_s": 500.0, "request_tokens_per_s": RequestRates.of({1: 50.0})}
    assert routed(REQUEST, fleet_of(slow=slow, busy={"running_requests": 5})).replica_id == "busy"
    assert routed(REQUEST, fleet_of(slow=slow, busy={"queued_prompt_tokens": 9000})).replica_id == "slow"


def test_reported_queued_prompts_drain_as_time_passes() -> None:
    fleet = fleet_of(a={"queued_prompt_tokens": 1500, "taken_at_s": NOW_S - 1.0}, b={"queued_prompt_tokens": 600})
    decision = routed(REQUEST, fleet)
    assert decision.replica_id == "a"
    assert {each.replica_id: each.terms["wait_s"] for each in decision.weighed} == {"a": 0.5, "b": 0.6}


def test_an_idle_replica_has_not_worked_ahead() -> None:
    fleet, in_flight = fleet_of(a={"taken_at_s": NOW_S - 1.0}, b={"queued_prompt_tokens": 600}), InFlight()
    in_flight.started(replace(REQUEST, request_id="early", prompt_tokens=300), "a", NOW_S - 0.9)
    in_flight.started(replace(REQUEST, request_id="late", prompt_tokens=900), "a", NOW_S - 0.1)
    decision = routed(REQUEST, fleet, in_flight)
    waits = {each.replica_id: each.terms["wait_s"] for each in decision.weighed}
    assert waits == {"a": pytest.approx(0.9 - 0.1), "b": 0.6}, (
        "the early prompt is done, and a tenth of a second of the late one"
    )


def test_own_requests_since_the_report_count() -> None:
    fleet, in_flight = fleet_of(a={}, b={"running_requests": 1}), InFlight()
    in_flight.started(replace(REQUEST, request_id="earlier"), "a", NOW_S)
    assert routed(REQUEST, fleet, in_flight).replica_id == "b"
    in_flight.reported("a", NOW_S + 1.0)
    assert routed(REQUEST, fleet, in_flight).replica_id == "a", "a report that shows it must not count it twice"


def test_own_requests_since_the_report_fill_the_batch_and_the_replica() -> None:
    fleet, in_flight = fleet_of(a={"running_requests": 2, "max_ongoing_requests": 4}), InFlight()
    in_flight.started(replace(REQUEST, request_id="earlier"), "a", NOW_S)
    assert routed(REQUEST, fleet, in_flight).weighed[0].terms["decode_s"] == pytest.approx(100 / 85)
    in_flight.started(replace(REQUEST, request_id="another"), "a", NOW_S)
    decision = decide(REQUEST, fleet, in_flight, NOW_S, draw=0)
    assert isinstance(decision, Shed)
    assert decision.reason is ShedReason.FULL


def test_other_dispatchers_are_assumed_to_have_sent_as_much() -> None:
    in_flight = InFlight()
    in_flight.started(replace(REQUEST, request_id="earlier"), "a", NOW_S)
    fleet = replace(fleet_of(a={}), dispatchers=4)
    assert routed(REQUEST, fleet, in_flight).weighed[0].terms["wait_s"] == 4.0


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"state": ReplicaState.DRAINING}, Exclusion.DRAINING),
        ({"state": ReplicaState.DEAD}, Exclusion.DEAD),
        ({"state": ReplicaState.STALLED}, Exclusion.STALLED),
        ({"running_requests": 16, "waiting_requests": 16}, Exclusion.FULL),
    ],
)
def test_a_replica_that_cannot_take_it_is_excluded_with_the_reason(how: dict[str, object], reason: Exclusion) -> None:
    fleet = fleet_of(out=how, slow={"queued_prompt_tokens": 90_000})
    for draw in range(4):
        decision = routed(REQUEST, fleet, draw=draw)
        assert decision.replica_id == "slow"
        assert {each.replica_id: each.excluded for each in decision.weighed} == {"slow": None, "out": reason}
    alone = shed(REQUEST, fleet_of(out=how))
    assert alone.reason == ShedReason(reason)
    assert alone.weighed[0].excluded is reason


def test_a_replica_that_failed_the_request_is_not_tried_again() -> None:
    fleet = fleet_of(a={}, b={"running_requests": 9})
    assert routed(replace(REQUEST, tried=frozenset("a")), fleet).replica_id == "b"
    assert shed(replace(REQUEST, tried=frozenset("ab")), fleet).reason is ShedReason.TRIED


def test_a_replica_without_kv_room_is_chosen_only_if_none_has_room() -> None:
    full = {"kv_usage_ratio": 0.995}
    fleet = fleet_of(tight=full, roomy={"queued_prompt_tokens": 50_000})
    assert routed(REQUEST, fleet).replica_id == "roomy"
    decision = routed(REQUEST, fleet_of(tight=full, worse=full | {"running_requests": 9}))
    assert (decision.replica_id, decision.reason) == ("tight", RouteReason.QUEUED)


def test_tokens_sent_since_the_report_take_kv_room() -> None:
    in_flight = InFlight()
    in_flight.started(RouteRequest("big", prompt_tokens=98_000, output_tokens=1_000), "a", NOW_S)
    fleet = fleet_of(a={"prefill_tokens_per_s": 1e6}, b={"prefill_tokens_per_s": 100.0})
    assert routed(REQUEST, fleet, in_flight).replica_id == "b"


def test_an_empty_fleet_sheds() -> None:
    decision = shed(REQUEST, Fleet.of())
    assert (decision.reason, decision.retry_after_s) == (ShedReason.NO_REPLICAS, RETRY_AFTER_UNKNOWN_S)


def test_retry_after_is_the_time_to_drain_the_shortest_queue() -> None:
    full = {"running_requests": 16, "waiting_requests": 16}
    fleet = fleet_of(a=full | {"queued_prompt_tokens": 40_000}, b=full | {"queued_prompt_tokens": 20_000})
    decision = shed(REQUEST, fleet)
    # 17 requests wait in b. Its batch of 16 gives 400 tokens/s, so a 200-token answer ends every half second.
    assert decision.retry_after_s == max(20.0, 17 * 0.5)
    assert shed(REQUEST, fleet_of(a=full | {"queued_prompt_tokens": 10**7})).retry_after_s == RETRY_AFTER_MAX_S
    quick = {"running_requests": 1, "max_ongoing_requests": 1, "output_tokens_mean": 0.0}
    assert shed(REQUEST, fleet_of(a=quick)).retry_after_s == RETRY_AFTER_MIN_S


@pytest.mark.parametrize(
    "blind",
    [None, {"taken_at_s": NOW_S - 10.0}, {"request_tokens_per_s": RequestRates()}, {"prefill_tokens_per_s": 0.0}],
    ids=["no report", "old report", "no decode rate", "no prefill rate"],
)
def test_without_a_usable_report_the_least_in_flight_wins(blind: dict[str, object] | None) -> None:
    fleet, in_flight = fleet_of(blind=blind, idle={}), InFlight()
    for number in range(3):
        in_flight.started(replace(REQUEST, request_id=f"idle {number}"), "idle", NOW_S - 9.0)
    in_flight.reported("idle", NOW_S)
    in_flight.started(replace(REQUEST, request_id="blind"), "blind", NOW_S - 9.0)
    decision = routed(REQUEST, fleet, in_flight)
    assert (decision.replica_id, decision.reason) == ("blind", RouteReason.LEAST_IN_FLIGHT)
    assert {each.replica_id: each.terms for each in decision.weighed} == {
        "idle": {"in_flight_requests": 3},
        "blind": {"in_flight_requests": 1},
    }


def test_a_prefix_goes_home_while_that_is_soonest() -> None:
    fleet = fleet_of(**{name: {} for name in "abcdefgh"})
    home = fleet.homes.of_key(KEY)[0]
    for draw in range(8):
        decision = routed(SHARING, fleet, draw=draw)
        assert (decision.replica_id, decision.reason) == (home, RouteReason.HOME)
    queued = fleet.reported([replace(SNAPSHOT, replica_id=home, taken_at_s=NOW_S + 1e-3, queued_prompt_tokens=5000)])
    assert routed(SHARING, queued).reason is SOONEST.reason


def test_a_home_over_the_bound_hands_over_to_the_next() -> None:
    fleet, in_flight = fleet_of(**{name: {} for name in "abcdefgh"}), InFlight()
    first, second, _ = fleet.homes.of_key(KEY)
    for number in range(LIMITS.home_free_requests):
        assert routed(SHARING, fleet, in_flight).replica_id == first
        in_flight.started(replace(REQUEST, request_id=str(number)), first, NOW_S - 50.0)
        in_flight.reported(first, NOW_S)
    assert routed(SHARING, fleet, in_flight).replica_id == second
    for name in "abcdefgh":
        for number in range(4):
            in_flight.started(replace(REQUEST, request_id=f"{name} {number}"), name, NOW_S - 50.0)
        in_flight.reported(name, NOW_S)
    assert routed(SHARING, fleet, in_flight).replica_id == second, "8 is over 1.25 times the mean of 4.6"


def test_small_shares_of_several_dispatchers_can_put_a_home_over_its_bound() -> None:
    fleet, in_flight = replace(fleet_of(**{name: {} for name in "abcdefgh"}), dispatchers=4), InFlight()
    first, second, _ = fleet.homes.of_key(KEY)
    assert routed(SHARING, fleet, in_flight).replica_id == first
    in_flight.started(replace(REQUEST, request_id="1"), first, NOW_S - 50.0)
    in_flight.reported(first, NOW_S)
    assert routed(SHARING, fleet, in_flight).replica_id == second, "each of four dispatchers has one request there"


def test_a_session_moves_to_the_next_home_when_its_own_drains_and_no_other_session_moves() -> None:
    names = [f"replica-{number}" for number in range(10)]
    before = fleet_of(**{name: {} for name in names})
    after = before.reported(
        [replace(SNAPSHOT, replica_id=names[4], taken_at_s=NOW_S + 1e-3, state=ReplicaState.DRAINING)]
    )
    gone = before.with_members(name for name in names if name != names[4])
    for number in range(200):
        request = replace(SHARING, affinity_key=number)
        first, second, _ = before.homes.of_key(number)
        expected = second if first == names[4] else first
        assert routed(request, before, draw=number).replica_id == first
        assert routed(request, after, draw=number).replica_id == expected
        assert routed(request, gone, draw=number).replica_id == expected


def test_a_replica_that_was_sent_the_prefix_before_is_as_warm_as_its_home() -> None:
    fleet, in_flight = fleet_of(**{name: {} for name in "abc"}), InFlight()
    stranger = fleet.homes.of_key(KEY)[2]
    in_flight.started(replace(SHARING, request_id="earlier"), stranger, NOW_S - 50.0)
    in_flight.ended("earlier", NOW_S)
    costs = {each.replica_id: each.terms["prefill_s"] for each in routed(SHARING, fleet, in_flight).weighed}
    assert [costs[name] for name in fleet.homes.of_key(KEY)] == [0.2, 1.0, 0.2]


class Touched(tuple[str, ...]):
    """Replica ids that record which of them are read, and fail if they are scanned."""

    def __new__(cls, ids: tuple[str, ...]) -> "Touched":
        made = super().__new__(cls, ids)
        made.read = Counter()
        return made

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        name = super().__getitem__(place)
        self.read[name] += 1
        return name

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a decision scans the fleet")


class Unscannable(dict[str, ReplicaSnapshot]):
    """Snapshots that can be looked up but not scanned."""

    read: Counter[str]

    def get(self, name: str, default: object = None) -> ReplicaSnapshot | None:
        self.read[name] += 1
        return super().get(name)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a decision scans the fleet")

    keys = values = items = __iter__


def watched(how: dict[str, object]) -> tuple[Fleet, Counter[str]]:
    names = tuple(f"replica-{number}" for number in range(1000))
    fleet = Fleet.of(names)
    snapshots = Unscannable({name: replace(SNAPSHOT, replica_id=name, **how) for name in names})
    ids = Touched(names)
    snapshots.read = ids.read
    return replace(fleet, replica_ids=ids, snapshots=snapshots), ids.read


@pytest.mark.parametrize("request_", [REQUEST, SHARING], ids=["alone", "sharing"])
def test_a_decision_over_a_thousand_replicas_touches_a_handful(request_: RouteRequest) -> None:
    fleet, read = watched({})
    routed(request_, fleet, draw=random.Random(1).getrandbits(64))
    assert len(read) == LIMITS.handful


def test_a_decision_that_finds_no_room_gives_up_after_a_bounded_number() -> None:
    fleet, read = watched({"running_requests": 32})
    assert shed(SHARING, fleet).reason is ShedReason.FULL
    assert len(read) <= LIMITS.probed + HOMES


def test_all_of_a_small_fleet_are_probed_before_a_request_is_shed() -> None:
    full = {"running_requests": 32}
    names = [f"replica-{number}" for number in range(LIMITS.probed)]
    for draw, free in enumerate(names):
        fleet = fleet_of(**{name: {} if name == free else full for name in names})
        assert routed(REQUEST, fleet, draw=draw * 7919).replica_id == free


LOADS = st.fixed_dictionaries(
    {
        "running_requests": st.integers(0, 32),
        "queued_prompt_tokens": st.integers(0, 10_000),
        "kv_usage_ratio": st.floats(0, 1),
        "state": st.sampled_from(ReplicaState),
        "taken_at_s": st.floats(NOW_S - 5, NOW_S + 1),
        "prefill_tokens_per_s": st.sampled_from([0.0, 10.0, 1000.0]),
        "request_tokens_per_s": st.sampled_from(
            [RequestRates(), RequestRates.of({1: 0.0}), RequestRates.of({1: 100.0, 2: 50.0})]
        ),
        "output_tokens_mean": st.sampled_from([0.0, 100.0]),
    }
)


@given(
    st.lists(st.none() | LOADS, max_size=8),
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
    st.sets(st.sampled_from("abcdefgh")),
)
def test_every_decision_is_consistent_with_what_it_weighed(
    hows: list[dict[str, object] | None], draw: int, key: int | None, tried: set[str]
) -> None:
    fleet = fleet_of(**dict(zip("abcdefgh", hows, strict=False)))
    request = replace(REQUEST, affinity_key=key, prefix_tokens=2000, tried=frozenset(tried))
    decision = decide(request, fleet, InFlight(), NOW_S, draw, limits=Limits(handful=8))
    assert decision == decide(request, fleet, InFlight(), NOW_S, draw, limits=Limits(handful=8))
    names = [each.replica_id for each in decision.weighed]
    assert sorted(set(names)) == sorted(names), "no replica is weighed twice"
    open_ = {each.replica_id: each.cost for each in decision.weighed if each.excluded is None}
    if isinstance(decision, Route):
        assert decision.replica_id in open_
        assert open_[decision.replica_id] == min(open_.values())
        assert not math.isnan(min(open_.values()))
        assert set(decision.ranked) == set(open_)
        assert decision.replica_id not in tried
    else:
        assert not open_
        assert set(names) == set(fleet.replica_ids)
        assert RETRY_AFTER_MIN_S <= decision.retry_after_s <= RETRY_AFTER_MAX_S


@given(st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_probing_never_looks_at_one_replica_twice(size: int, draw: int) -> None:
    fleet = fleet_of(**{f"r{number}": {"state": ReplicaState.DRAINING} for number in range(size)})
    decision = decide(REQUEST, fleet, InFlight(), NOW_S, draw)
    assert len({each.replica_id for each in decision.weighed}) == len(decision.weighed) == min(size, LIMITS.probed)


@pytest.mark.parametrize("age_s", [0.0, 1.0, 60.0], ids=["fresh", "old", "stale"])
@pytest.mark.parametrize("sharing", [0.0, 0.5, 1.0], ids=["alone", "half share", "all share"])
@pytest.mark.parametrize("seed", range(3))
def test_four_independent_dispatchers_do_not_herd(age_s: float, sharing: float, seed: int) -> None:
    chance, names = random.Random(seed), ["a", "b", "c", "d"]
    dispatchers = [Dispatcher() for _ in range(4)]
    # Reports with small random differences: all four dispatchers see the same replica as the best.
    reports = [
        replace(SNAPSHOT, replica_id=name, taken_at_s=NOW_S - age_s, running_requests=running, max_ongoing_requests=256)
        for running, name in enumerate(names)
    ]
    for dispatcher in dispatchers:
        dispatcher.set_members(names)
        dispatcher.set_dispatchers(4)
        dispatcher.report(reports)
    sent: Counter[str] = Counter()
    for number in range(200):
        base = SHARING if chance.random() < sharing else REQUEST
        request = replace(base, request_id=str(number), prompt_tokens=chance.choice([200, 1000, 4000]))
        decision = chance.choice(dispatchers).dispatch(request, NOW_S, chance.getrandbits(64))
        assert isinstance(decision, Route)
        sent[decision.replica_id] += 1
    assert max(sent.values()) <= 1.5 * 200 / 4, sent
