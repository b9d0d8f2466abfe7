"""Changes and trials of K: the gain that a change needs, when a trial may start, and how much time trials may take."""

from dataclasses import replace
from math import log1p

import pytest

from peagle.router.depth import DepthState, Mode, start, step
from peagle.router.depth.rule.choice import wish
from peagle.router.depth.rule.trial import next_trial
from peagle.router.snapshot import DepthTable, StepCell
from support.depth.depth_reports import SETTINGS, good_cell, report

FORECAST = start(SETTINGS).forecast(SETTINGS, 0.0)
LEAST = log1p(SETTINGS.gain_ratio)


def served(cell: StepCell, reports: int, trials_left: float, off_s: float = 0.0) -> DepthState:
    """Return a replica that has reported this cell, with the given allowance for trials."""
    state, table = start(SETTINGS), DepthTable(0, (cell.depth,))
    for number in range(reports):
        state, _ = step(state, report(cell, table=table), SETTINGS, 0.5 * number)
    ranges = len(state.depths)
    return replace(state, trial=None, trials_left=(trials_left,) * ranges, off_s=off_s)


def test_the_depth_that_surely_promises_most_is_wished_for_however_far_off() -> None:
    for index in range(len(FORECAST.ranges)):
        for present in SETTINGS.rungs:
            gains = {rung: FORECAST.gain(index, present, rung) for rung in SETTINGS.rungs}
            wished = wish(FORECAST, index, present)
            if wished is None:
                assert all(gain.log_ratio - 0.25 * gain.sd <= LEAST for gain in gains.values())
            else:
                assert gains[wished.depth].log_ratio > LEAST
                assert wished.depth != present


def test_no_draft_for_long_asks_for_a_trial_of_the_best_depth_that_drafts_however_poor() -> None:
    poor = replace(good_cell(), accepted=(10, 1, 0, 0, 0, 0, 0), tokens=111)
    late = served(poor, 10, 4.0).forecast(SETTINGS, 4.5 + SETTINGS.blind_s)
    trial = next_trial(late, 0, 0, 0.0)
    assert trial is not None
    assert trial.depth == max(SETTINGS.rungs[1:], key=lambda rung: late.log_yield(0, rung))
    assert late.gain(0, 0, trial.depth).log_ratio < 0


def all_but_zero_known() -> DepthState:
    """At batch 1 every K above 0 was timed, and K = 7 is best. K = 0 predicts less, but was never timed."""
    state = served(good_cell(depth=7), 20, 4.0)
    for depth in (1, 2, 3, 5):
        for number in range(4):
            slow = good_cell(depth=depth, seconds=0.8)
            state, _ = step(state, report(slow), SETTINGS, 10.0 + 2 * depth + 0.5 * number)
    return replace(state, trial=None, depths=(7, *state.depths[1:]))


@pytest.mark.parametrize(("off_s", "tried"), [(0.4, None), (0.5, 0)])
def test_k_0_is_tried_if_its_step_time_is_uncertain_and_time_is_left(off_s: float, tried: int | None) -> None:
    forecast = all_but_zero_known().forecast(SETTINGS, 22.0)
    assert forecast.gain(0, 7, 0).log_ratio + 2 * forecast.gain(0, 7, 0).sd < 0
    trial = next_trial(forecast, 0, 7, off_s)
    assert (trial.depth if trial else None) == tried


@pytest.mark.parametrize(("left", "mode"), [(0.9, Mode.ADAPTIVE), (1.0, Mode.PROBING)])
def test_a_trial_starts_only_if_one_is_left(left: float, mode: Mode) -> None:
    state = all_but_zero_known()
    state = replace(state, off_s=1.0, trials_left=(left,) * len(state.depths))
    _, plan = step(state, report(good_cell(depth=7)), SETTINGS, 22.0)
    assert plan.mode is mode


def test_requests_that_draft_no_more_after_a_trial_of_no_drafts_are_counted_against_the_next() -> None:
    state = served(good_cell(), 4, 4.0, off_s=1.0)
    rested = replace(good_cell(), drafts=50, drafted=(50,) * 5 + (0, 0), accepted=(30, 20, 10, 5, 2, 0, 0), rested=50)
    after, _ = step(state, report(rested), SETTINGS, 3.0)
    assert after.off_s == pytest.approx(1.0 - 0.5 * 0.5 + 0.005 * 0.5)
