from pathlib import Path

from peagle.bench.core.journal import Journal
from peagle.bench.engines.step_costs import StepCosts, cost_lines, cost_rows, times_since
from peagle.router.depth.cost_table import CostTable
from peagle.router.snapshot import StepCell, StepTime

FIRST, SECOND = (StepTime(1, 7, 30, 0.3), StepTime(2, 7, 2, 0.02)), (StepTime(1, 7, 10, 0.1), StepTime(1, 0, 9, 0.045))


def test_steps_of_several_starts_make_one_table(tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}, (StepCosts,)) as journal:
        journal.keep(StepCosts(FIRST))
        journal.keep(StepCosts(SECOND))
    with Journal.open(tmp_path, {}, (StepCosts,)) as journal:
        rows = cost_rows(journal)
    assert [(row["batch_size"], row["depth"], row["steps"]) for row in rows] == [(1, 0, 9), (1, 7, 40)]
    assert CostTable.from_plain(rows).step_s(1, 7) == 0.01


def test_only_what_was_added_counts() -> None:
    def cell(depth: int, steps: int) -> StepCell:
        return StepCell(2, depth, steps, 0.5 * steps, 0, 0, (), (), (), ())

    added = times_since([cell(0, 4), cell(3, 9), cell(7, 5)], [cell(3, 6), cell(7, 5)])
    assert added == (StepTime(2, 0, 4, 2.0), StepTime(2, 3, 3, 1.5))


def test_the_report_has_a_line_for_each_batch_size() -> None:
    rows = CostTable.of((*FIRST, *SECOND)).plain()
    assert cost_lines({"cost_table": rows})[2:-1] == [
        "| at once |  | K = 0 | K = 7 |",
        "| --- | --- | ---: | ---: |",
        "| 1 | ms | 5.00 | 10.00 |",
        "| 2 | ms |  | 10.00 |",
    ]


def test_an_older_result_has_no_such_table() -> None:
    assert cost_lines({}) == []
