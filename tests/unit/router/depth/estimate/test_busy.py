"""Where the load is, and that neighbouring ranges draft as the loaded range does."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from peagle.router.depth import Cause, DepthLimits, DepthSettings, DepthState, Mode, batch_ranges, start, step
from peagle.router.depth.estimate.busy import Busy
from peagle.router.depth.rule.choice import together
from peagle.router.depth.rule.trial import Trial
from peagle.router.snapshot import DepthTable, PromptStats
from support.depth.depth_reports import SETTINGS, good_cell, report

RANGES = [batches.at for batches in batch_ranges(SETTINGS.batch_max)]
FOUR, SIX, EIGHT = (RANGES.index(batch_size) for batch_size in (4, 6, 8))


def with_depths(depths: Sequence[int], main: int | None = None, settings: DepthSettings = SETTINGS) -> DepthState:
    """Return a state with its load at `main`, and these depths as if the rule had chosen them."""
    state, _ = step(start(settings), report(), settings, 0.0)
    busy = Busy().observe({main: 1.0}, 0.0) if main is not None else Busy()
    return replace(state, depths=tuple(depths), busy=busy)


@pytest.mark.parametrize(
    ("own", "main", "handed_out"),
    [
        ((7, 5, 3, 0, 0), 3, (7, 5, 0, 0, 0)),
        ((7, 5, 3, 0, 0), 2, (7, 5, 3, 3, 0)),
        ((7, 5, 3, 0, 0), 0, (7, 5, 3, 0, 0)),
        ((0, 5, 3, 1, 2), 4, (0, 5, 3, 1, 2)),
        ((0, 5, 0, 1, 2), None, (0, 5, 0, 1, 2)),
    ],
)
def test_ranges_beside_the_load_draft_as_it_does(
    own: tuple[int, ...], main: int | None, handed_out: tuple[int, ...]
) -> None:
    assert together(start(SETTINGS).forecast(SETTINGS, 0.0), own, main) == handed_out
    always = replace(SETTINGS, drafter_skipped_at_zero=False)
    assert together(start(always).forecast(always, 0.0), own, main) == own


def test_no_range_drafts_with_the_load_beyond_the_inter_token_target() -> None:
    free = start(SETTINGS).forecast(SETTINGS, 0.0)
    own = tuple(3 if batch_size <= 4 else 0 for batch_size in RANGES)
    assert together(free, own, FOUR)[SIX] == 3
    for target_s, depth in ((0.999 * free.step_s(SIX, 3), 2), (0.999 * free.step_s(SIX, 1), 0)):
        settings = replace(SETTINGS, inter_token_s_max=target_s / 0.95)
        assert together(start(settings).forecast(settings, 0.0), own, FOUR)[SIX] == depth


def test_a_range_that_starts_or_stops_following_the_load_says_so() -> None:
    own = [5 if index <= EIGHT else 0 for index in range(len(RANGES))]
    state, plan = step(with_depths(own, EIGHT), report(), SETTINGS, 0.5)
    assert plan.table.depth_at(RANGES[EIGHT + 1]) == 5
    state = replace(state, busy=Busy().observe({0: 1.0}, 0.5))
    _, plan = step(state, report(table=plan.table), SETTINGS, 1.0)
    assert [(each.cause, each.depth_before, each.depth_after) for each in plan.changes] == [(Cause.LOAD, 5, 0)]


def test_a_range_that_drafts_with_the_load_goes_on_from_there_when_it_wishes_to_draft_itself() -> None:
    own = [7 if index <= FOUR else 0 for index in range(len(RANGES))]
    state = with_depths(own, FOUR)
    accepted = tuple(round(400 * 0.9 ** (j + 1)) for j in range(7))
    predictable = replace(good_cell(batch_size=4, depth=7), accepted=accepted, tokens=400 + sum(accepted))
    table = DepthTable(0, (5,))
    for number in range(1, 20):
        state, plan = step(state, report(predictable, table=table), SETTINGS, 0.5 * number)
        table = plan.table
        assert table.depth_at(6) >= 5
    assert state.depths[SIX] >= 5


def test_a_pause_in_the_middle_of_a_trial_ends_it_beside_the_load_too() -> None:
    trial = Trial(EIGHT, 5, 0.0)
    state = replace(with_depths([0] * len(RANGES), EIGHT), trial=trial)
    state, plan = step(state, report(), SETTINGS, 0.5)
    assert {plan.table.depth_at(RANGES[index]) for index in (EIGHT - 1, EIGHT, EIGHT + 1)} == {5}
    paused = replace(SETTINGS, limits=DepthLimits(paused=True))
    _, plan = step(state, report(table=plan.table), paused, 1.0)
    assert set(plan.table.depths) == {0}


def test_a_trial_from_no_drafts_waits_for_the_first_one_through_steps_and_through_silence() -> None:
    state = with_depths([0] * len(RANGES), EIGHT)
    state = replace(state, trial=Trial(EIGHT, 5, 0.0))
    rested = replace(good_cell(batch_size=8, depth=0, seconds=0.5), drafts=0, drafted=(0,) * 7, accepted=(0,) * 7)
    table, now_s = DepthTable(0, (5,)), 0.0
    for cells in [(rested,)] * 20 + [()] * 400:
        now_s += 0.5
        state, plan = step(state, report(*cells, table=table), SETTINGS, now_s)
        table = plan.table
        assert plan.mode is Mode.PROBING
    for _ in range(400):
        now_s += 0.5
        state, plan = step(state, report(rested, table=table), SETTINGS, now_s)
        table = plan.table
        if plan.mode is not Mode.PROBING:
            break
    assert state.trial is None


@pytest.mark.parametrize(("timed", "steps", "enough"), [(True, 1, False), (True, 2, True), (False, 2, False)])
def test_where_a_step_was_timed_before_a_trial_needs_only_drafts(timed: bool, steps: int, enough: bool) -> None:
    batches = batch_ranges(SETTINGS.batch_max)[-1]
    trial = Trial(len(RANGES) - 1, 3, 0.0, timed=timed)
    assert trial.saw((good_cell(batches.at, 3, steps),), PromptStats(), batches, 0.5).saw_enough is enough


def test_a_router_that_was_lost_in_the_middle_of_a_trial_does_not_take_it_for_its_plan() -> None:
    state = replace(with_depths([0] * len(RANGES), EIGHT), trial=Trial(EIGHT, 5, 0.0))
    _, plan = step(state, report(), SETTINGS, 0.5)
    assert set(plan.table.depths) == {0, 5}
    told = replace(report(table=plan.table), untried=plan.untried)
    _, after = step(start(SETTINGS), told, SETTINGS, 0.0)
    assert set(after.table.depths) == {0}
    assert after.table.version > plan.table.version


def main_after(stays: Sequence[tuple[int, float]], report_s: float = 0.5) -> list[int | None]:
    """Return the main range at the end of each stay (range, seconds), in order."""
    busy, now_s, found = Busy(), 0.0, []
    for index, seconds in stays:
        for _ in range(round(seconds / report_s)):
            now_s += report_s
            busy = busy.observe({index: report_s}, now_s)
        found.append(busy.main)
    return found


def test_a_load_that_leaps_is_followed_within_two_seconds() -> None:
    assert main_after([(0, 30.0), (9, 2.0), (0, 2.0)]) == [0, 9, 0]


@pytest.mark.parametrize("swing_s", [0.5, 1.0, 2.0])
def test_a_load_that_swings_between_neighbours_stays_with_one(swing_s: float) -> None:
    assert len(set(main_after([(6, swing_s), (7, swing_s)] * 20)[1:])) == 1


def test_a_neighbour_that_has_most_of_the_time_becomes_the_main_range() -> None:
    assert main_after([(6, 10.0)] + [(7, 2.0), (6, 0.5)] * 8)[-1] == 7


def test_after_a_rest_the_first_load_counts() -> None:
    busy = Busy().observe({6: 0.5}, 0.0)
    assert busy.observe({7: 0.5}, 60.0).main == 7
    assert busy.observe({}, 60.0) is busy
