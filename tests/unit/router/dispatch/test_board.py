"""The Router's data for dispatchers: the age of snapshots at each hop, and the number of dispatchers."""

import pytest

from peagle.router.dispatch import Board, DispatcherReport
from peagle.router.dispatch.board import BUSY_FOR_S, DISPATCHER_GONE_AFTER_S
from peagle.router.snapshot import ReplicaSnapshot, RequestRates


def replica(name: str) -> ReplicaSnapshot:
    return ReplicaSnapshot(name, taken_at_s=12345.0, running_requests=3)


def test_a_snapshot_is_as_old_for_the_reader_as_it_is_on_the_board() -> None:
    board = Board()
    board.report(replica("a"), now_s=100.0)
    (seen,) = board.news(DispatcherReport("d"), now_s=100.4).received(now_s=7.0)
    assert seen.taken_at_s == pytest.approx(6.6)
    assert (seen.replica_id, seen.running_requests) == ("a", 3)


def test_a_newer_report_takes_the_place_of_the_last_and_a_silent_replica_is_forgotten() -> None:
    board = Board()
    board.report(replica("a"), now_s=0.0)
    board.report(replica("b"), now_s=0.0)
    board.report(replica("a"), now_s=29.0)
    assert {each.replica_id: each.taken_at_s for each in board.news(DispatcherReport("d"), 29.0).snapshots} == {
        "a": 0.0,
        "b": -29.0,
    }
    assert [each.replica_id for each in board.news(DispatcherReport("d"), 31.0).snapshots] == ["a"]


def test_dispatchers_with_recent_open_requests_are_counted() -> None:
    board, heard = Board(), DISPATCHER_GONE_AFTER_S - 1.0
    assert board.news(DispatcherReport("a", open_requests=0), 0.0).dispatchers == 1
    board.news(DispatcherReport("b", open_requests=4), 0.0)
    board.news(DispatcherReport("c", open_requests=0), 0.0)
    assert board.news(DispatcherReport("a", open_requests=9), 0.2).dispatchers == 2
    now_s = 0.0
    while now_s + heard <= BUSY_FOR_S:
        now_s += heard
        board.news(DispatcherReport("b", open_requests=0), now_s)
        assert board.news(DispatcherReport("a"), now_s).dispatchers == 2, "b may send more at any moment"
    board.news(DispatcherReport("b", open_requests=0), BUSY_FOR_S + 1.0)
    assert board.news(DispatcherReport("a"), BUSY_FOR_S + 1.0).dispatchers == 1, "b idles"


def test_a_silent_dispatcher_is_forgotten_with_its_open_requests() -> None:
    board = Board()
    board.news(DispatcherReport("b", open_requests=1), 0.0)
    assert board.news(DispatcherReport("a"), DISPATCHER_GONE_AFTER_S).dispatchers == 2
    assert board.news(DispatcherReport("a"), DISPATCHER_GONE_AFTER_S + 0.1).dispatchers == 1


def test_a_replica_that_was_slow_long_ago_is_reported_as_average() -> None:
    board, rates = Board(), {"prefill_tokens_per_s": 1000.0, "rate_prefills": 100.0}
    fast, slow = RequestRates.of({1: 100.0}), RequestRates.of({1: 20.0})
    for now_s, steps in ((0.0, 500.0), (10.0, 0.5)):
        board.report(ReplicaSnapshot("a", 0.0, request_tokens_per_s=fast, rate_steps=500.0, **rates), now_s)
        board.report(ReplicaSnapshot("b", 0.0, request_tokens_per_s=slow, rate_steps=steps, **rates), now_s)
        board.report(ReplicaSnapshot("a", 0.0, request_tokens_per_s=fast, rate_steps=500.0, **rates), now_s + 0.5)
        board.report(ReplicaSnapshot("b", 0.0, request_tokens_per_s=slow, rate_steps=steps, **rates), now_s + 0.5)
        seen = {each.replica_id: each for each in board.news(DispatcherReport("d"), now_s + 0.5).snapshots}
        if steps > 1:
            assert seen["b"].request_tokens_per_s.at(1) < 0.3 * seen["a"].request_tokens_per_s.at(1)
    assert seen["b"].request_tokens_per_s.at(1) > 0.9 * seen["a"].request_tokens_per_s.at(1)
