"""What the Router keeps for dispatchers: ages that every hop adds to, who else dispatches, and what was decided."""

import pytest

from peagle.router.dispatch import Board, DispatcherReport
from peagle.router.dispatch.board import DISPATCHER_GONE_AFTER_S
from peagle.router.snapshot import ReplicaSnapshot


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


def test_only_others_that_have_requests_open_count_as_dispatchers() -> None:
    board = Board()
    assert board.news(DispatcherReport("a", open_requests=0), 0.0).dispatchers == 1
    board.news(DispatcherReport("b", open_requests=4), 0.1)
    board.news(DispatcherReport("c", open_requests=0), 0.1)
    assert board.news(DispatcherReport("a", open_requests=9), 0.2).dispatchers == 2
    assert board.news(DispatcherReport("a", open_requests=9), 5.2).dispatchers == 1, "b has gone"


def test_decisions_are_counted_once_each_and_outlast_their_dispatcher() -> None:
    board = Board()
    board.news(DispatcherReport("a", decisions={"soonest": 2}), 0.0)
    board.news(DispatcherReport("a", decisions={"soonest": 5, "home": 1}), 0.2)
    board.news(DispatcherReport("b", decisions={"home": 3}), 0.2)
    assert board.decisions == {"soonest": 5, "home": 4}
    board.news(DispatcherReport("c"), 60.0)
    assert board.decisions == {"soonest": 5, "home": 4}
    board.news(DispatcherReport("a", decisions={"soonest": 6, "home": 1}), 61.0)
    assert board.decisions == {"soonest": 6, "home": 4}


def test_one_that_has_gone_for_good_is_forgotten_but_not_what_it_decided() -> None:
    board = Board()
    board.news(DispatcherReport("a", decisions={"soonest": 2}), 0.0)
    board.news(DispatcherReport("b", decisions={"home": 1}), DISPATCHER_GONE_AFTER_S + 1.0)
    assert board.decisions == {"soonest": 2, "home": 1}
    assert set(board._dispatchers) == {"b"}
