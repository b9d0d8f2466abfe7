import json
from math import sqrt

import pytest

from peagle.errors import ConfigError
from peagle.router.depth import start
from peagle.router.depth.cost_table import CostTable
from peagle.router.depth.rule.state import calibrate
from peagle.router.snapshot import StepTime
from peagle.simulator.depth_replica import Replica
from support.depth.depth_reports import SETTINGS, good_cell
from support.engines.gpu_lines import TRIAL_STEP_MS

TIMES = (StepTime(1, 0, 10, 0.05), StepTime(1, 7, 10, 0.06), StepTime(4, 0, 5, 0.04), StepTime(4, 7, 20, 0.32))


def test_it_comes_back_as_it_was_written() -> None:
    table = CostTable.of(TIMES)
    again = CostTable.from_plain(json.loads(json.dumps(table.plain())))
    assert [(each.batch_size, each.depth, each.steps) for each in again.times] == [
        (each.batch_size, each.depth, each.steps) for each in TIMES
    ]
    assert [each.seconds for each in again.times] == pytest.approx([each.seconds for each in TIMES])
    assert (table.batch_sizes, table.depths) == ((1, 4), (0, 7))
    assert table.plain()[0] == {"batch_size": 1, "depth": 0, "steps": 10, "step_ms": pytest.approx(5.0)}


def test_repeated_timings_are_summed_and_too_few_steps_dropped() -> None:
    again = StepTime(1, 0, 30, 0.03)
    assert CostTable.of([*TIMES, again], steps_min=10).times[0] == StepTime(1, 0, 40, pytest.approx(0.08))
    assert (4, 0) not in {(each.batch_size, each.depth) for each in CostTable.of(TIMES, steps_min=10).times}


def test_an_engines_own_sums_are_taken() -> None:
    cell = good_cell()
    (time,) = CostTable.of([cell]).times
    assert (time.batch_size, time.depth, time.steps, time.seconds) == (
        cell.batch_size,
        cell.depth,
        cell.steps,
        cell.seconds,
    )


@pytest.mark.parametrize(
    ("batch_size", "depth", "step_s"),
    [(1, 0, 0.005), (4, 7, 0.016), (2, 7, sqrt(0.006 * 0.016)), (9, 0, 0.008), (0.5, 0, 0.005)],
)
def test_between_two_batch_sizes_a_step_costs_what_lies_between(batch_size: float, depth: int, step_s: float) -> None:
    assert CostTable.of(TIMES).step_s(batch_size, depth) == pytest.approx(step_s)


@pytest.mark.parametrize(("depth", "step_s"), [(3.5, 0.0055), (10, 0.006), (0, 0.005)])
def test_a_k_that_was_not_timed_costs_what_lies_between(depth: float, step_s: float) -> None:
    assert CostTable.of(TIMES).step_s(1, depth) == pytest.approx(step_s)


def test_without_a_step_there_is_no_cost() -> None:
    with pytest.raises(ValueError, match="no step was timed"):
        CostTable.of([]).step_s(1, 3)


def test_a_simulated_replica_takes_its_steps_from_it() -> None:
    table = CostTable.of(
        StepTime(batch_size, depth, 1, step_ms / 1e3)
        for batch_size, by_depth in TRIAL_STEP_MS.items()
        for depth, step_ms in by_depth.items()
    )
    curve = (0.83, 0.72, 0.75, 0.76, 0.79, 0.78, 0.81)
    replica = Replica(
        lambda _: curve, lambda _: 1, step_s=lambda batch, tokens, _: table.step_s(batch, tokens / batch - 1)
    )
    assert [replica.best(batch_size, 0.0)[0] for batch_size in (1, 8, 32)] == [7, 7, 5]


def test_the_rule_takes_it_as_its_calibration() -> None:
    state = calibrate(start(SETTINGS), CostTable.of(TIMES).times, SETTINGS, 0.0)
    assert state.calibration == CostTable.of(TIMES).times


@pytest.mark.parametrize("row", [{}, {"batch_size": 1, "depth": 0, "steps": 3, "step_ms": "much"}, 3])
def test_a_malformed_row_is_refused(row: object) -> None:
    with pytest.raises(ConfigError, match="cost_table"):
        CostTable.from_plain([row])  # type: ignore[list-item]
