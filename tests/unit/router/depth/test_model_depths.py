"""The replicas of one model: new ones learn from others, silent ones are forgotten, limits apply per replica."""

from dataclasses import replace

import pytest

from peagle.router.depth import DepthLimits, DepthPlan, Mode, ModelDepths
from peagle.router.depth.model_depths import FORGET_AFTER_S
from peagle.router.snapshot import DepthTable, StepTime
from support.depth.depth_reports import SETTINGS, good_cell, report


def fed(depths: ModelDepths, replica: str, reports: int, start_s: float = 0.0) -> DepthPlan:
    """Send reports of good steps, each after the last plan was applied."""
    table = DepthTable(0, (SETTINGS.depth_static,))
    for number in range(reports):
        plan = depths.report(replica, report(good_cell(), table=table), start_s + 0.5 * number)
        table = plan.table
    return plan


def test_a_new_replica_begins_with_what_the_others_have_learned() -> None:
    alone, joined = ModelDepths(SETTINGS), ModelDepths(SETTINGS)
    fed(joined, "old", 40)
    for depths in (alone, joined):
        depths.report("new", report(), 20.0)
    drafts = [depths.view("new", 20.0).evidence_drafts for depths in (alone, joined)]  # type: ignore[union-attr]
    assert drafts[0] < drafts[1]


def test_a_replica_that_comes_calibrated_is_known_from_its_first_report_and_again_after_the_router_was_lost() -> None:
    # Three times as slow as the prior predicts, and the drafter costs nothing.
    times = tuple(StepTime(size, depth, 1000, 9.0) for size in (1, 2, 3, 4) for depth in (0, 1, 2, 3, 5, 7))
    for depths in (ModelDepths(SETTINGS), ModelDepths(SETTINGS)):
        depths.report("a", replace(report(), calibration=times), 100.0)
        seen = depths.view("a", 100.0)
        assert seen is not None
        assert list(seen.ranges[0].predicted_step_s.values()) == pytest.approx([9e-3] * 6, rel=0.02)


def test_the_guard_takes_nothing_from_what_was_calibrated() -> None:
    depths = ModelDepths(SETTINGS)
    times = tuple(StepTime(size, depth, 1000, 9.0) for size in (1, 2, 3, 4) for depth in (0, 1, 2, 3, 5, 7))
    depths.report("a", replace(report(), calibration=times), 0.0)
    impossible = replace(good_cell(), accepted=(100,) * 6 + (101,))
    assert depths.report("a", report(impossible), 0.5).mode is Mode.FALLBACK
    seen = depths.view("a", 0.5)
    assert seen is not None
    assert list(seen.ranges[0].predicted_step_s.values()) == pytest.approx([9e-3] * 6, rel=0.02)


def test_a_replica_that_is_silent_for_long_is_forgotten_with_its_limits() -> None:
    depths = ModelDepths(SETTINGS)
    fed(depths, "gone", 2)
    depths.limit(DepthLimits(pin=1), "gone")
    depths.report("here", report(), 0.5 + FORGET_AFTER_S)
    assert set(depths.replicas) == {"gone", "here"}
    depths.report("here", report(), 0.6 + FORGET_AFTER_S)
    assert set(depths.replicas) == {"here"}
    assert depths.view("gone", 200.0) is None
    assert depths.limits_of("gone") == DepthLimits()


def test_a_pin_holds_for_its_replica_until_it_is_taken_back() -> None:
    depths = ModelDepths(SETTINGS)
    depths.limit(DepthLimits(pin=2), "a")
    pinned, free = fed(depths, "a", 3), fed(depths, "b", 3)
    assert (pinned.mode, set(pinned.table.depths)) == (Mode.PINNED, {2})
    assert free.mode is not Mode.PINNED
    depths.limit(None, "a")
    assert depths.report("a", report(good_cell(), table=pinned.table), 2.0).mode is not Mode.PINNED


def test_limits_of_the_model_hold_where_a_replica_has_none() -> None:
    depths = ModelDepths(SETTINGS)
    depths.limit(DepthLimits(pin=1), "a")
    depths.limit(DepthLimits(pin=3))
    assert [set(fed(depths, replica, 2).table.depths) for replica in ("a", "b")] == [{1}, {3}]
    depths.limit(None)
    assert depths.limits_of("b") == DepthLimits()


def test_what_was_learned_outlasts_the_last_replica() -> None:
    scaled, fresh = ModelDepths(SETTINGS), ModelDepths(SETTINGS)
    fed(scaled, "old", 40)
    much_later_s = 20.0 + 2 * FORGET_AFTER_S
    for depths in (scaled, fresh):
        depths.report("new", report(), much_later_s)
    assert set(scaled.replicas) == {"new"}
    known, unknown = (depths.view("new", much_later_s) for depths in (scaled, fresh))
    assert known is not None
    assert unknown is not None
    assert known.evidence_drafts > unknown.evidence_drafts


def test_what_is_expected_of_a_replica_is_known_once_it_has_shown_a_step() -> None:
    depths = ModelDepths(SETTINGS)
    depths.report("new", report(), 0.0)
    assert depths.estimates(0.0) == {}
    fed(depths, "a", 6)
    (seen,) = depths.estimates(3.0).values()
    shown = depths.view("a", 3.0)
    assert shown is not None
    assert (seen.depth_planned, seen.goodput_ratio) == (shown.ranges[0].depth, shown.goodput_ratio)
    predicted = shown.ranges[0].predicted_tokens_per_s
    assert seen.speedup_ratio == pytest.approx(predicted[seen.depth_planned] / predicted[0])
    assert seen.speedup_low < seen.speedup_ratio < seen.speedup_high
