from dataclasses import replace

from peagle.router.snapshot import DepthTable, StepCell, StepStats

CELL = StepCell(2, 3, 10, 1.5, 50, 20, (20, 20, 20), (15, 10, 5), (0, 0, 0), (0, 0, 0))
TABLE = DepthTable(1, (3,))


def test_totals_come_from_every_cell() -> None:
    shallow = StepCell(4, 1, 5, 1.0, 30, 20, (20, 0, 0), (10, 0, 0), (0, 20, 20), (0, 5, 1))
    stats = StepStats(TABLE, 3, (CELL, shallow))
    assert (stats.drafts, stats.drafted, stats.accepted) == (40, 80, 40)
    assert stats.requested == 20 * CELL.depth + 20 * 1
    assert stats.drafting_steps == 40
    assert stats.drafted_by_position == (40, 20, 20)
    assert stats.accepted_by_position == (25, 10, 5)
    assert stats.depth_effective == 2.0
    assert stats.acceptance_length == 2.0


def test_only_those_asked_for_a_draft_count_as_such() -> None:
    resting = StepCell(2, 0, 10, 1.0, 20, 0, (0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), rested=20)
    mixed = replace(CELL, batch_size=4, rested=25)
    stats = StepStats(TABLE, 3, (resting, mixed))
    assert stats.drafting_steps == 10 * 4 - 25
    ending = StepStats(TABLE, 3, (resting, replace(mixed, ended=5)))
    assert ending.drafting_steps == 10 * 4 - 25 - 5
    assert ending.requested == 3 * ending.drafting_steps
    assert stats.requested == 3 * stats.drafting_steps


def test_before_the_first_draft_its_rates_are_unknown() -> None:
    stats = StepStats(TABLE, 3, ())
    assert (stats.depth_effective, stats.acceptance_length) == (None, None)


def test_since_returns_what_was_added() -> None:
    later = replace(
        CELL,
        steps=11,
        seconds=1.75,
        tokens=53,
        drafts=22,
        drafted=(22, 22, 22),
        accepted=(17, 11, 5),
        rested=1,
        ended=1,
        whole=(3, 0, 5),
    )
    new = StepCell(1, 0, 4, 0.5, 4, 0, (0, 0, 0), (0, 0, 0), (4, 4, 3), (2, 1, 0))
    added = StepStats(TABLE, 3, (later, new)).since(StepStats(TABLE, 3, (replace(CELL, whole=(1, 0, 5)),)))
    assert added.cells == (
        StepCell(2, 3, 1, 0.25, 3, 2, (2, 2, 2), (2, 1, 0), (0, 0, 0), (0, 0, 0), rested=1, ended=1, whole=(2, 0, 0)),
        new,
    )


def test_since_drops_cells_that_did_not_change() -> None:
    stats = StepStats(TABLE, 3, (CELL,))
    assert stats.since(stats).cells == ()
