from dataclasses import replace

import pytest

from peagle.router.dispatch import Board, Dispatcher, DispatcherReport, EndedDrafts, Route
from peagle.router.dispatch.policies.by_acceptance import BY_ACCEPTANCE
from peagle.router.snapshot import DepthTable, DraftPlan, ReplicaSnapshot, RequestRates
from support.depth.candidates import REQUEST, SNAPSHOT

CODE, NOISE = 11, 22
SURVIVAL = (0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.1)


def replica(name: str, depth: int, tokens_per_s: float) -> ReplicaSnapshot:
    """Return a replica whose usual request gets `tokens_per_s` at its K."""
    return replace(
        SNAPSHOT,
        replica_id=name,
        request_tokens_per_s=RequestRates.of({1: tokens_per_s, 256: tokens_per_s}),
        drafts=DraftPlan(DepthTable(1, (depth,)), SURVIVAL),
    )


def chosen(*snapshots: ReplicaSnapshot, kinds: tuple[int, ...]) -> str:
    board = Board()
    ended = EndedDrafts(CODE, 100, 700, 500), EndedDrafts(NOISE, 100, 100, 10)
    for snapshot in snapshots:
        board.report(snapshot, 0.0, ended)
    news = board.news(DispatcherReport("one"), 0.0)
    dispatcher = Dispatcher(BY_ACCEPTANCE)
    dispatcher.set_members(each.replica_id for each in snapshots)
    dispatcher.set_right_ratios(news.right_ratios)
    dispatcher.report(news.received(0.0))
    decision = dispatcher.dispatch(replace(REQUEST, output_tokens=500, kinds=kinds), 0.0, draw=0)
    assert isinstance(decision, Route)
    return decision.replica_id


@pytest.mark.parametrize(("kinds", "expected"), [((CODE,), "deep"), ((NOISE,), "off"), ((33, NOISE), "off")])
def test_a_request_goes_where_its_own_drafts_are_worth_most(kinds: tuple[int, ...], expected: str) -> None:
    assert chosen(replica("deep", 7, 100.0), replica("off", 0, 100.0), kinds=kinds) == expected
    assert chosen(replica("off", 0, 100.0), replica("deep", 7, 100.0), kinds=kinds) == expected


@pytest.mark.parametrize("kinds", [(), (33,)])
def test_an_unknown_request_goes_to_the_soonest(kinds: tuple[int, ...]) -> None:
    assert chosen(replica("deep", 7, 90.0), replica("off", 0, 100.0), kinds=kinds) == "off"
    assert chosen(replica("deep", 7, 100.0), replica("off", 0, 90.0), kinds=kinds) == "deep"


def test_the_closest_known_kind_counts() -> None:
    assert chosen(replica("deep", 7, 100.0), replica("off", 0, 100.0), kinds=(CODE, NOISE)) == "deep"


def test_replicas_with_the_same_k_are_weighed_alike() -> None:
    assert chosen(replica("a", 3, 101.0), replica("b", 3, 100.0), kinds=(NOISE,)) == "a"


def test_a_replica_without_a_depth_plan_is_weighed_by_its_rates() -> None:
    plain = replace(replica("plain", 0, 100.0), drafts=None)
    assert chosen(plain, replica("off", 0, 90.0), kinds=(CODE,)) == "plain"
