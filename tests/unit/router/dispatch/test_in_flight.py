"""A dispatcher's state: its fleet, and its own requests compared with reports."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from peagle.router.dispatch import Dispatcher, Fleet, InFlight, Route
from peagle.router.dispatch.in_flight import ARRIVAL_S, ENDS_REMEMBERED_S, PREFIXES_REMEMBERED
from peagle.router.snapshot import ReplicaSnapshot, RequestRates, RouteRequest

REQUEST = RouteRequest("first", prompt_tokens=100, output_tokens=20)


def seen(in_flight: InFlight, replica_id: str) -> tuple[int, int, int, int]:
    sent = in_flight.to(replica_id)
    prompt_tokens = sum(request.prompt_tokens for request in sent.unseen.values())
    return sent.open_requests, len(sent.unseen), prompt_tokens, sent.unseen_kv_tokens


def test_a_sent_request_is_unseen_until_a_later_report() -> None:
    in_flight = InFlight()
    in_flight.started(REQUEST, "a", 10.0)
    assert seen(in_flight, "a") == (1, 1, 100, 120)
    in_flight.reported("a", 10.0 + ARRIVAL_S / 2)
    assert seen(in_flight, "a") == (1, 1, 100, 120), "it may have arrived after the report"
    in_flight.reported("a", 10.0 + 2 * ARRIVAL_S)
    assert seen(in_flight, "a") == (1, 0, 0, 0)


def test_an_ended_request_leaves_nothing_whether_or_not_it_was_reported() -> None:
    in_flight = InFlight()
    in_flight.started(REQUEST, "a", 10.0)
    in_flight.ended("first", 10.1)
    assert seen(in_flight, "a") == (0, 0, 0, 0)
    in_flight.started(REQUEST, "a", 10.0)
    in_flight.reported("a", 11.0)
    in_flight.ended("first", 11.1)
    in_flight.ended("first", 11.1)
    assert seen(in_flight, "a") == (0, 0, 0, 0)
    assert in_flight.open_requests == 0


def test_ends_are_counted_until_a_report_shows_them() -> None:
    in_flight = InFlight()
    for number in range(3):
        in_flight.started(replace(REQUEST, request_id=str(number)), "a", 10.0)
    in_flight.reported("a", 11.0)
    in_flight.started(replace(REQUEST, request_id="unseen"), "a", 11.4)
    in_flight.ended("0", 11.0 + ARRIVAL_S / 2)  # the report may no longer include it
    for name in ("1", "2", "unseen", "1"):
        in_flight.ended(name, 11.5)
    assert in_flight.to("a").ended_requests == 2
    in_flight.reported("a", 11.001)
    assert in_flight.to("a").ended_requests == 2, "the same report again"
    in_flight.reported("a", 12.0)
    assert in_flight.to("a").ended_requests == 0


def test_a_request_that_ended_while_its_report_was_in_transit_counts() -> None:
    in_flight = InFlight()
    in_flight.reported("a", 9.0)
    in_flight.started(REQUEST, "a", 10.0)
    in_flight.ended("first", 11.1)
    in_flight.reported("a", 11.0)
    assert in_flight.to("a").ended_requests == 1


def test_a_request_that_was_never_sent_has_not_ended() -> None:
    in_flight = InFlight()
    in_flight.started(REQUEST, "a", 10.0)
    in_flight.reported("a", 11.0)
    in_flight.forgotten("first")
    assert seen(in_flight, "a") == (0, 0, 0, 0)
    assert in_flight.to("a").ended_requests == 0


def test_ends_that_no_report_asks_for_are_not_kept() -> None:
    in_flight = InFlight()
    for number in range(100):
        in_flight.started(replace(REQUEST, request_id=str(number)), "a", 0.0)
    for number in range(100):
        in_flight.ended(str(number), number + 0.5)
    in_flight.reported("a", 0.1)  # before every end, so all remembered ends count
    assert in_flight.to("a").ended_requests == ENDS_REMEMBERED_S + 1


def test_a_request_that_goes_elsewhere_counts_only_there() -> None:
    in_flight = InFlight()
    in_flight.started(REQUEST, "a", 10.0)
    in_flight.started(REQUEST, "b", 10.1)
    assert seen(in_flight, "a") == (0, 0, 0, 0)
    assert seen(in_flight, "b") == (1, 1, 100, 120)


def test_the_late_end_of_a_failed_attempt_does_not_end_the_next() -> None:
    in_flight = InFlight()
    in_flight.started(REQUEST, "a", 10.0)
    in_flight.started(REQUEST, "b", 10.1)
    in_flight.ended("first", 10.2, at="a")
    assert in_flight.open_requests == 1
    in_flight.ended("first", 10.2, at="b")
    assert in_flight.open_requests == 0


def test_a_prefix_sent_before_costs_no_prefill_again() -> None:
    in_flight = InFlight()
    first = replace(REQUEST, affinity_key=7, prefix_tokens=80)
    in_flight.started(first, "a", 10.0)
    in_flight.started(replace(first, request_id="second"), "a", 10.0)
    assert seen(in_flight, "a")[2] == 100 + 20


def test_remembered_prefixes_are_bounded_and_the_oldest_go_first() -> None:
    in_flight = InFlight()
    for key in range(PREFIXES_REMEMBERED + 1):
        in_flight.started(replace(REQUEST, affinity_key=key), "a", 10.0)
        in_flight.started(replace(REQUEST, affinity_key=1), "a", 10.0)
    kept = in_flight.to("a").prefixes
    assert len(kept) == PREFIXES_REMEMBERED
    assert 0 not in kept
    assert 1 in kept


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(0, 5), st.sampled_from("ab")),
            st.tuples(st.just("end"), st.integers(0, 5), st.just("")),
            st.tuples(st.just("report"), st.integers(0, 30), st.sampled_from("ab")),
            st.tuples(st.just("leave"), st.just(0), st.sampled_from("ab")),
        ),
        max_size=40,
    )
)
def test_counts_always_equal_a_recount(steps: list[tuple[str, int, str]]) -> None:
    in_flight, now_s = InFlight(), 0.0
    where: dict[str, tuple[str, float]] = {}
    reported = {"a": -1.0, "b": -1.0}
    for kind, number, replica_id in steps:
        now_s += 1.0
        if kind == "start":
            in_flight.started(replace(REQUEST, request_id=str(number)), replica_id, now_s)
            where[str(number)] = (replica_id, now_s)
        elif kind == "end":
            in_flight.ended(str(number), now_s)
            where.pop(str(number), None)
        elif kind == "report":
            in_flight.reported(replica_id, reported_at := float(number))
            reported[replica_id] = reported_at
        else:
            in_flight.retain({"a", "b"} - {replica_id})
            where = {name: place for name, place in where.items() if place[0] != replica_id}
            reported[replica_id] = -1.0
    for name in "ab":
        there = [at for place, at in where.values() if place == name]
        unseen = sum(at > reported[name] - ARRIVAL_S for at in there)
        assert seen(in_flight, name) == (len(there), unseen, 100 * unseen, 120 * unseen)
    assert in_flight.open_requests == len(where)


def test_a_fleet_takes_newer_reports_of_its_members_only() -> None:
    fleet = Fleet.of(["a", "b"])
    newer = fleet.reported([ReplicaSnapshot("a", 2.0, running_requests=3), ReplicaSnapshot("stranger", 2.0)])
    late = newer.reported([ReplicaSnapshot("a", 1.0, running_requests=9)])
    assert fleet.snapshots == {}, "the older value is untouched"
    assert set(newer.snapshots) == {"a"}
    assert late.snapshots["a"].running_requests == 3


def test_a_fleet_keeps_the_reports_of_members_that_stay() -> None:
    fleet = Fleet.of(["a", "b"]).reported([ReplicaSnapshot("a", 1.0), ReplicaSnapshot("b", 1.0)])
    changed = fleet.with_members(["b", "c"])
    assert changed.replica_ids == ("b", "c")
    assert set(changed.snapshots) == {"b"}
    assert changed.with_members(["c", "b"]) is changed


def test_a_dispatcher_counts_what_it_sends_before_the_next_decision() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_members(["a", "b"])
    chosen = []
    for name in "xy":
        decision = dispatcher.dispatch(replace(REQUEST, request_id=name), now_s=1.0, draw=0)
        assert isinstance(decision, Route)
        chosen.append(decision.replica_id)
    assert sorted(chosen) == ["a", "b"]
    dispatcher.moved(replace(REQUEST, request_id="x"), chosen[1], 1.0)
    dispatcher.ended("y", 1.0)
    assert dispatcher.open_requests == 1
    dispatcher.set_members([chosen[0]])
    assert dispatcher.open_requests == 0, "open requests of a removed replica are forgotten"


def test_a_request_that_is_decided_again_does_not_count_against_itself() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_members(["a"])
    dispatcher.report([ReplicaSnapshot("a", 0.0, max_ongoing_requests=1)])
    for attempt in range(3):
        decision = dispatcher.dispatch(REQUEST, now_s=100.0 + attempt, draw=attempt)
        assert isinstance(decision, Route), "the replica is idle, its report is old"
        assert dispatcher.where(REQUEST.request_id) == "a"
        assert dispatcher.open_requests == 1
    refused = dispatcher.dispatch(replace(REQUEST, request_id="other"), now_s=103.0, draw=0)
    assert not isinstance(refused, Route)


def test_a_late_old_report_does_not_make_seen_requests_unseen() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_members(["a"])
    dispatcher.dispatch(REQUEST, now_s=5.0, draw=0)
    rated = ReplicaSnapshot(
        "a", 6.0, running_requests=1, prefill_tokens_per_s=100.0, request_tokens_per_s=RequestRates.of({1: 1.0})
    )
    dispatcher.report([rated])
    dispatcher.report([replace(rated, taken_at_s=4.0, running_requests=0)])
    decision = dispatcher.dispatch(replace(REQUEST, request_id="next", prompt_tokens=200), now_s=6.0, draw=0)
    assert isinstance(decision, Route)
    assert decision.weighed[0].terms["wait_s"] == 0.0


def test_a_full_replica_has_places_again_as_its_requests_end() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_members(["a"])
    full = ReplicaSnapshot("a", 2.0, running_requests=2, max_ongoing_requests=2)
    for name in ("first", "second"):
        dispatcher.dispatch(replace(REQUEST, request_id=name), now_s=1.0, draw=0)
    dispatcher.report([full])

    def is_taken(name: str) -> bool:
        return isinstance(dispatcher.dispatch(replace(REQUEST, request_id=name), now_s=2.3, draw=0), Route)

    assert not is_taken("third")
    dispatcher.ended("first", 2.2)
    dispatcher.report([full])  # a process reads each report several times
    assert is_taken("third")
    assert not is_taken("fourth")


def test_own_ended_requests_do_not_hide_own_open_requests() -> None:
    dispatcher = Dispatcher()
    dispatcher.set_members(["a"])
    for number in range(4):
        dispatcher.dispatch(replace(REQUEST, request_id=str(number)), now_s=1.0, draw=0)
    dispatcher.set_members(["a", "b"])
    dispatcher.set_dispatchers(4)  # three others, which send nothing now
    rates = RequestRates.of({batch: 100.0 - batch for batch in range(1, 9)})
    rated = ReplicaSnapshot("a", 2.0, prefill_tokens_per_s=1e6, request_tokens_per_s=rates, max_running_requests=8)
    dispatcher.report([replace(rated, running_requests=4), replace(rated, replica_id="b", running_requests=2)])
    dispatcher.ended("0", 2.2)
    decision = dispatcher.dispatch(replace(REQUEST, request_id="next"), now_s=2.3, draw=0)
    assert isinstance(decision, Route)
    assert decision.replica_id == "b", "three of its own requests run on a"
