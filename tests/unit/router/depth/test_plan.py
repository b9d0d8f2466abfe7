"""The rule's plans: always applicable, an operator's limits first, and the static K if reports cannot be trusted."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engine.depth.depth_table import next_table
from peagle.router.depth import (
    Cause,
    DepthLimits,
    DepthPlan,
    DepthSettings,
    DepthState,
    Mode,
    batch_ranges,
    depth_ladder,
    fleet_prior,
    request_tokens_per_s,
    start,
    step,
    view,
)
from peagle.router.snapshot import DepthTable, RequestRates, StepCell
from support.depth.depth_reports import SETTINGS, STATIC, good_cell, report
from support.depth.step_cells import cells


def limited(**limits: object) -> DepthSettings:
    return replace(SETTINGS, limits=DepthLimits(**limits))  # type: ignore[arg-type]


def feed(
    state: DepthState, cell: StepCell, reports: int, settings_: DepthSettings = SETTINGS, start_s: float = 0.0
) -> tuple[DepthState, DepthPlan]:
    """Send `reports` reports with the same cell, each of which states that the last plan is applied."""
    plan = None
    for number in range(reports):
        table = plan.table if plan else (state.plan.table if state.plan else STATIC)
        state, plan = step(state, report(cell, table=table), settings_, start_s + 0.5 * number)
    assert plan is not None
    return state, plan


@pytest.mark.parametrize(
    ("arguments", "rungs"),
    [
        ((7,), (0, 1, 2, 3, 5, 7)),
        ((1,), (0, 1)),
        ((8,), (0, 1, 2, 3, 5, 7, 8)),
        ((11,), (0, 1, 2, 3, 5, 7, 9, 11)),
        ((7, 2, 6), (2, 3, 5, 6)),
        ((7, 4, 4), (4,)),
        ((7, 9, 3), (3,)),
        ((7, 0, None, 4), (0, 1, 2, 3, 4, 5, 7)),
        ((7, 0, 3, 4), (0, 1, 2, 3)),
    ],
)
def test_the_ladder_keeps_to_the_bounds(arguments: tuple[int, ...], rungs: tuple[int, ...]) -> None:
    assert depth_ladder(*arguments) == rungs


@pytest.mark.parametrize("batch_max", [1, 2, 3, 5, 31, 32, 33, 100, 1024])
def test_batch_ranges_cover_every_batch_size_once(batch_max: int) -> None:
    ranges = batch_ranges(batch_max)
    covered = [size for one in ranges for size in range(one.first, one.last + 1)]
    assert covered == list(range(1, batch_max + 1))
    assert all(one.first <= one.at <= one.last for one in ranges)


def test_the_first_plan_is_what_the_replica_applies_already() -> None:
    _, plan = step(start(SETTINGS), report(), SETTINGS, 0.0)
    assert (plan.table, plan.changes) == (STATIC, ())


@pytest.mark.parametrize("static", [4, 6])
def test_the_configured_k_stays_where_no_other_promises_more(static: int) -> None:
    asked, table = replace(SETTINGS, depth_static=static), replace(STATIC, depths=(static,) * len(STATIC.depths))
    state, plan = step(start(asked), report(table=table), asked, 0.0)
    assert (plan.table, plan.changes) == (table, ())
    assert all(static in one.predicted_tokens_per_s for one in view(state, asked, 0.0).ranges)


def test_a_tuner_that_comes_back_takes_over_the_replicas_table() -> None:
    learned = DepthTable(41, (7, 7, 7, 5, 5, *(0,) * 28))
    state, plan = step(start(SETTINGS), report(table=learned), SETTINGS, 0.0)
    assert plan.table == learned
    assert list(state.depths) == [7, 7, 5, 5, 0, 0, 0, 0, 0, 0]


def test_a_replica_that_restarted_is_sent_the_plan_again() -> None:
    state, plan = step(start(SETTINGS), report(table=DepthTable(41, (3,))), SETTINGS, 0.0)
    _, again = step(state, report(table=STATIC), SETTINGS, 0.5)
    assert again.table == plan.table
    assert again.table.version > STATIC.version


def test_a_table_from_elsewhere_is_replaced_by_a_newer_version() -> None:
    state, _ = step(start(SETTINGS), report(), SETTINGS, 0.0)
    _, plan = step(state, report(table=DepthTable(9, (1,))), SETTINGS, 0.5)
    assert plan.table.version == 10
    assert set(plan.table.depths) == {5}


def test_a_pin_wins_at_once_and_over_bounds_and_ends_at_once() -> None:
    state, before = step(start(SETTINGS), report(good_cell()), SETTINGS, 0.0)
    state, pinned = step(state, report(good_cell()), limited(pin=2, floor=3), 0.5)
    assert (pinned.mode, set(pinned.table.depths)) == (Mode.PINNED, {2})
    assert pinned.table.version > before.table.version
    assert {change.cause for change in pinned.changes} == {Cause.PIN}
    _, released = step(state, report(table=pinned.table), SETTINGS, 1.0)
    assert (released.mode, released.table.depth_at(1)) == (Mode.ADAPTIVE, before.table.depth_at(1))
    assert Cause.RESUMED in {change.cause for change in released.changes}


def test_a_pin_suspends_the_guard() -> None:
    state, _ = step(start(SETTINGS), report(), SETTINGS, 0.0)
    impossible = report(replace(good_cell(), accepted=(999,) * 7))
    state, plan = step(state, impossible, limited(pin=2), 0.5)
    assert (plan.mode, state.guard.trips, state.cost.steps) == (Mode.PINNED, 0, 0)
    state, plan = step(state, impossible, SETTINGS, 1.0)
    assert (plan.mode, state.guard.trips) == (Mode.FALLBACK, 1)


def test_bounds_hold_from_the_next_report() -> None:
    state, _ = step(start(SETTINGS), report(), SETTINGS, 0.0)
    state, plan = step(state, report(), limited(ceiling=3), 0.5)
    assert set(plan.table.depths) == {3}
    assert {change.cause for change in plan.changes} == {Cause.LIMITS}
    _, plan = step(state, report(table=plan.table), limited(floor=6), 1.0)
    assert set(plan.table.depths) == {6}


def test_a_pause_keeps_the_table_while_learning_goes_on() -> None:
    state, before = step(start(SETTINGS), report(), SETTINGS, 0.0)
    paused = limited(paused=True)
    state, plan = feed(state, good_cell(batch_size=16, seconds=4.0), 10, paused, start_s=0.5)
    assert (plan.mode, plan.table) == (Mode.PAUSED, before.table)
    assert state.acceptance.counts.drafts > 1000
    _, plan = feed(state, good_cell(batch_size=16, seconds=4.0), 4, SETTINGS, start_s=6.0)
    assert plan.table.depth_at(16) < 5


def test_a_pause_keeps_a_k_that_was_pinned() -> None:
    state, _ = step(start(SETTINGS), report(), SETTINGS, 0.0)
    state, pinned = step(state, report(), limited(pin=4), 0.5)
    _, plan = step(state, report(table=pinned.table), limited(paused=True), 1.0)
    assert (plan.mode, plan.table, plan.changes) == (Mode.PAUSED, pinned.table, ())


def test_a_pause_wins_over_the_guard_and_bounds_win_over_a_pause() -> None:
    state, before = step(start(SETTINGS), report(), SETTINGS, 0.0)
    impossible = replace(good_cell(), accepted=(999,) * 7)
    state, plan = step(state, report(impossible), limited(paused=True), 0.5)
    assert (plan.mode, plan.table) == (Mode.PAUSED, before.table)
    assert state.guard.trips == 0, "the estimates were reset"
    _, plan = step(state, report(), limited(paused=True, ceiling=2), 1.0)
    assert (plan.mode, set(plan.table.depths)) == (Mode.PAUSED, {2})


def test_a_probe_without_observations_ends() -> None:
    state, plan = feed(start(SETTINGS), good_cell(seconds=0.45), 3)
    number = 3
    while plan.mode is not Mode.PROBING:
        state, plan = feed(state, good_cell(seconds=0.45), 1, start_s=0.5 * number)
        number += 1
        assert number < 100
    _, plan = step(state, report(table=plan.table), SETTINGS, 0.5 * number + SETTINGS.trial_s_max)
    assert plan.mode is Mode.ADAPTIVE


def test_a_pause_ends_a_probe_instead_of_staying_in_it() -> None:
    state, plan = feed(start(SETTINGS), good_cell(seconds=0.45), 3)
    for number in range(40):
        if plan.mode is Mode.PROBING:
            break
        state, plan = feed(state, good_cell(seconds=0.45), 1, start_s=1.5 + 0.5 * number)
    assert plan.mode is Mode.PROBING
    assert plan.untried != plan.table.depths
    _, paused = step(state, report(table=plan.table), limited(paused=True), 30.0)
    assert (paused.mode, paused.table.depths) == (Mode.PAUSED, plan.untried)


def test_an_idle_replica_keeps_its_plan() -> None:
    state, plan = step(start(SETTINGS), report(), SETTINGS, 0.0)
    for number in range(100):
        state, later = step(state, report(), SETTINGS, 0.5 * number)
        assert later.table == plan.table


def test_a_change_says_what_it_was_decided_on() -> None:
    slow = good_cell(batch_size=16, seconds=4.0)
    _, plan = feed(start(SETTINGS), slow, 1)
    assert plan.table.depth_at(16) < 5
    change = next(one for one in plan.changes if one.batch_first <= 16 <= one.batch_last)
    assert (change.cause, change.depth_before) == (Cause.GAIN, 5)
    assert change.inputs.gain_ratio > 0.03
    assert change.inputs.tokens_per_s[1] > change.inputs.tokens_per_s[0]
    assert change.inputs.measured_tokens_per_s == pytest.approx(slow.tokens / slow.seconds)
    assert "K 5 -> " in str(change)


def test_an_inter_token_target_rules_out_depths_whose_step_is_too_long() -> None:
    """Batch 1 would draft deeply, but a step with a draft takes 4.7 ms."""
    strict = replace(SETTINGS, inter_token_s_max=4.0e-3)
    state, plan = feed(start(strict), good_cell(seconds=0.47), 3, strict)
    assert plan.table.depth_at(1) == 0
    assert any(change.cause is Cause.LATENCY for change in state.log)
    # A target that is set while the rule would still delay any other change.
    state, plan = feed(start(SETTINGS), good_cell(seconds=0.47), 4)
    assert plan.table.depth_at(1) > 0
    _, plan = feed(state, good_cell(seconds=0.47, depth=plan.table.depth_at(1)), 1, strict, start_s=2.0)
    assert plan.table.depth_at(1) == 0
    impossible = replace(SETTINGS, inter_token_s_max=1.0e-6)
    _, plan = feed(start(impossible), good_cell(seconds=0.47), 3, impossible)
    assert plan.table.depth_at(1) == 0


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (replace(good_cell(), accepted=(101, 0, 0, 0, 0, 0, 0)), "more drafts accepted than drafted"),
        (replace(good_cell(), steps=-1), "negative counts"),
        (replace(good_cell(), drafted=(1, 1)), "counts 2 positions, not 7"),
        (
            replace(good_cell(steps=2000, depth=1), tail_reached=(0, *(1000,) * 6), tail_matched=(0, *(1900,) * 6)),
            "acceptance rises with the position",
        ),
    ],
)
def test_a_report_that_cannot_be_true_means_the_static_k_for_a_while_and_says_why(cell: StepCell, words: str) -> None:
    state, _ = step(start(SETTINGS), report(), limited(ceiling=2), 0.0)
    state, plan = step(state, report(cell), SETTINGS, 0.5)
    assert (plan.mode, set(plan.table.depths)) == (Mode.FALLBACK, {5})
    assert words in plan.reason
    state, still = step(state, report(good_cell(), table=plan.table), SETTINGS, 29.0)
    assert still.mode is Mode.FALLBACK
    state, after = step(state, report(good_cell(), table=plan.table), SETTINGS, 31.0)
    assert after.mode is not Mode.FALLBACK
    # The second time, twice as long.
    state, plan = step(state, report(cell, table=plan.table), SETTINGS, 32.0)
    assert state.guard.until_s == pytest.approx(32.0 + 60.0)


def test_first_acceptance_that_halves_after_a_change_means_the_static_k() -> None:
    """As when a cut assigns drafts to the wrong requests: output stays exact, acceptance is gone."""
    drafts = limited(floor=1)
    slow = good_cell(batch_size=16, seconds=4.0)
    state, plan = feed(start(drafts), slow, 2, drafts)
    depth = plan.table.depth_at(16)
    assert 0 < depth < 5
    broken = good_cell(batch_size=16, depth=depth, seconds=3.0)
    broken = replace(broken, accepted=tuple(count // 5 for count in broken.accepted))
    state, plan = feed(state, broken, 1, drafts, start_s=1.0)
    assert (plan.mode, set(plan.table.depths)) == (Mode.FALLBACK, {5})
    assert "fell from 0.70 to 0.14 after a change of K" in plan.reason
    fallback = next(change for change in state.log if change.cause is Cause.GUARD)
    assert fallback.inputs.evidence_drafts > 100, "the evidence of the decision, not the reset estimates"
    assert fallback.inputs.survival[0] < 0.7


@pytest.mark.parametrize(("good_reports", "pause_s"), [(10, 0.0), (1, 31.0)])
def test_first_acceptance_that_halves_later_is_that_of_other_prompts(good_reports: int, pause_s: float) -> None:
    drafts = limited(floor=1)
    state, plan = feed(start(drafts), good_cell(batch_size=16, seconds=4.0), 2, drafts)
    drafts = limited(floor=plan.table.depth_at(16), ceiling=plan.table.depth_at(16))
    for number in range(good_reports):
        good = good_cell(batch_size=16, depth=plan.table.depth_at(16), steps=4, seconds=0.2)
        state, plan = feed(state, good, 1, drafts, start_s=1.0 + 0.5 * number)
    broken = good_cell(batch_size=16, depth=plan.table.depth_at(16), seconds=3.0)
    broken = replace(broken, accepted=tuple(count // 5 for count in broken.accepted))
    state, plan = feed(state, broken, 1, drafts, start_s=1.0 + pause_s + 0.5 * good_reports)
    assert (state.guard.reason, plan.mode is Mode.FALLBACK) == (None, False)


@pytest.mark.parametrize("depth", [0, 5])
def test_requests_that_ended_before_their_output_came_are_no_failed_prediction(depth: int) -> None:
    """Answers of ten steps, each computed once too often, as with overlapping steps."""
    fixed = limited(floor=depth, ceiling=depth)
    whole = good_cell(batch_size=4, depth=depth, steps=90)
    ended = replace(whole, steps=100, ended=40)
    assert ended.sequences == whole.sequences
    state, _ = feed(start(fixed), ended, 120, fixed)
    assert state.guard.trips == 0
    assert state.guard.goodput.ratio == pytest.approx(1.0, abs=0.01)
    assert state.delivery.ratio == pytest.approx(1.0)
    index = next(index for index, one in enumerate(batch_ranges(fixed.batch_max)) if one.first <= 4 <= one.last)
    assert state.cost.measured((index, depth))


def test_a_change_to_no_drafts_starts_no_comparison() -> None:
    only = replace(SETTINGS, depth_static=1, limits=DepthLimits(ceiling=1))
    table = DepthTable(0, (1,))
    state, plan = step(start(only), report(good_cell(batch_size=16, depth=1, seconds=4.0), table=table), only, 0.0)
    assert [change.depth_after for change in plan.changes if change.batch_first <= 16 <= change.batch_last] == [0]
    assert state.guard.watch is None


def test_everything_that_crosses_processes_survives_pickling() -> None:
    state, plan = feed(start(SETTINGS), good_cell(batch_size=16, seconds=4.0), 4)
    assert pickle.loads(pickle.dumps((state, plan, SETTINGS))) == (state, plan, SETTINGS)


def test_the_same_calls_give_the_same_plans() -> None:
    first, second = (feed(start(SETTINGS), good_cell(batch_size=8, seconds=1.0), 8) for _ in range(2))
    assert first == second


def test_a_new_replica_starts_with_what_the_fleet_knows() -> None:
    assert fleet_prior([start(SETTINGS)], SETTINGS) is None
    state, _ = feed(start(SETTINGS), good_cell(batch_size=16, seconds=4.0), 6)
    fleet = fleet_prior([state, start(SETTINGS)], SETTINGS)
    assert fleet is not None
    new, cold = start(SETTINGS, fleet), start(SETTINGS)
    index = 7
    assert batch_ranges(32)[index].at == 16
    known, guess, truth = (one.forecast(SETTINGS, 3.0).step_s(index, 5) for one in (new, cold, state))
    assert known == pytest.approx(truth)
    assert abs(guess / truth - 1.0) > 0.2
    assert new.acceptance.counts.drafts == pytest.approx(50.0)


def test_a_view_tells_what_lies_behind_the_plan() -> None:
    state, plan = feed(start(SETTINGS), good_cell(batch_size=16, seconds=4.0), 6)
    shown = view(state, SETTINGS, 3.0)
    assert shown.plan == plan
    mine = next(one for one in shown.ranges if one.batch_first <= 16 <= one.batch_last)
    assert mine.depth == plan.table.depth_at(16)
    assert set(mine.predicted_tokens_per_s) == {0, 1, 2, 3, 5, 7}
    assert shown.log[-1].at_s <= 3.0
    rates = request_tokens_per_s(state, SETTINGS, 3.0)
    assert rates.at(16) == pytest.approx(mine.predicted_tokens_per_s[mine.depth] / 16)
    assert len(rates.batch_sizes) == len(shown.ranges)
    assert request_tokens_per_s(start(SETTINGS), SETTINGS, 0.0) == RequestRates()


limits = st.builds(
    DepthLimits,
    floor=st.integers(0, 8),
    ceiling=st.none() | st.integers(0, 8),
    pin=st.none() | st.integers(0, 8),
    paused=st.booleans(),
)
calls = st.lists(st.tuples(st.floats(0.0, 20.0), st.lists(cells(), max_size=3), limits), max_size=10)


@settings(max_examples=60, deadline=None)
@given(calls)
def test_whatever_happens_the_engine_can_apply_every_plan(
    history: list[tuple[float, list[StepCell], DepthLimits]],
) -> None:
    state, now_s, applied = start(SETTINGS), 0.0, STATIC
    for pause_s, counted, word in history:
        now_s += pause_s
        told = replace(SETTINGS, limits=word)
        state, plan = step(state, report(*counted, table=applied), told, now_s)
        assert plan.changes == () or plan.table.version > applied.version
        if plan.table != applied:
            applied = next_table(plan.table.version, list(plan.table.depths), applied, 7, 32)
        if word.pin is not None:
            assert set(applied.depths) == {min(word.pin, 7)}
        elif not word.paused:
            rungs = depth_ladder(7, word.floor, word.ceiling)
            assert rungs[0] <= min(applied.depths) <= max(applied.depths) <= rungs[-1]
