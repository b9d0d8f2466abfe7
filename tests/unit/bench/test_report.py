"""What a result says, from runs whose figures can be worked out by hand."""

import json

import pytest

from peagle.bench.load import Trace
from peagle.bench.plan import Variant
from peagle.bench.report import best_line, best_rows, markdown, result_rows
from peagle.bench.speculation import Cell, Run
from peagle.bench.statistics import DraftCounts

NONE, EAGLE3, PEAGLE3, PEAGLE7 = (
    Variant(0, "none", 0),
    Variant(1, "eagle3", 3),
    Variant(2, "p-eagle", 3),
    Variant(2, "p-eagle", 7),
)


def run(tokens_per_s: float, last_token: int = 9, counts: DraftCounts | None = None) -> Run:
    """One request of ten tokens, the first at 10 ms and the rest 20 ms later."""
    trace = Trace((*range(9), last_token), (0.01, 0.03))
    return Run(10 / tokens_per_s, [trace], counts or DraftCounts(0, (), ()))


def runs() -> dict[Cell, list[Run]]:
    drafted = DraftCounts(4, (4, 4, 4), (3, 2, 1))
    return {
        (NONE, 1): [run(100), run(50)],
        (EAGLE3, 1): [run(120), run(60)],
        (PEAGLE3, 1): [run(180, counts=drafted), run(90, counts=drafted)],
        (PEAGLE7, 1): [run(200), run(100, last_token=8)],
    }


def test_ratios_pair_by_repeat_and_compare_equal_depths() -> None:
    none, eagle3, p_eagle3, p_eagle7 = result_rows(runs())
    assert p_eagle3["ratio_to_none"] == {"median": 1.8, "low": 1.8, "high": 1.8}
    assert p_eagle3["ratio_to_eagle3"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert eagle3["ratio_to_none"]["median"] == pytest.approx(1.2)
    assert none["ratio_to_none"]["median"] == 1.0
    # EAGLE-3 was not measured at K = 7.
    assert "ratio_to_eagle3" not in p_eagle7


def test_adaptive_depth_is_held_against_the_fastest_static_one() -> None:
    adaptive = Variant(2, "p-eagle", 7, adaptive=True)
    cells = {**runs(), (adaptive, 1): [run(210), run(95)]}
    assert result_rows(cells)[-1]["depth"] == "adaptive"
    row = best_rows(cells)[-1]
    assert (row["depth"], row["best_static_depth"]) == ("adaptive", 7)
    assert row["ratio_to_best_static"] == {"median": 1.0, "low": 0.95, "high": 1.05}
    assert row["ratio_to_none"]["median"] == 2.0
    assert "1 at once: p-eagle K=adaptive: 2.00" in best_line(row)


def test_figures_come_from_every_repeat() -> None:
    row = result_rows(runs())[2]
    assert row["output_tokens_per_s"] == {"median": 135.0, "low": 90.0, "high": 180.0, "repeats": [180.0, 90.0]}
    assert row["acceptance_length"] == pytest.approx(1 + 6 / 4)
    assert row["acceptance_by_position"] == [0.75, 0.5, 0.25]
    assert row["drafts"] == 8
    assert row["ttft_ms_p50"]["median"] == pytest.approx(10)
    assert row["itl_ms_p95"]["median"] == pytest.approx(20)


def test_outputs_that_differ_from_no_speculation_show() -> None:
    cells = runs()
    cells[PEAGLE7, 1] = [run(200, last_token=8), run(100)]
    shares = [row["outputs_equal_to_none_ratio"] for row in result_rows(cells)]
    assert shares == [1.0, 1.0, 1.0, 0.0]


def test_the_fastest_depth_of_each_method_is_compared() -> None:
    rows = {row["method"]: row for row in best_rows(runs())}
    assert rows["p-eagle"]["depth"] == 7
    assert rows["p-eagle"]["ratio_to_none"]["median"] == 2.0
    assert rows["p-eagle"]["ratio_to_best_eagle3"]["median"] == pytest.approx(200 / 120)
    assert "ratio_to_best_eagle3" not in rows["eagle3"]


def test_a_comparison_without_the_reference_has_no_ratio_to_it() -> None:
    rows = result_rows({(PEAGLE3, 1): [run(100)]})
    assert "ratio_to_none" not in rows[0]


def test_the_report_is_made_of_the_json_alone() -> None:
    result = {
        "model": "model",
        "command": "peagle bench speculation model.yaml",
        "commit": None,
        "versions": {"vllm": "1.2"},
        "hardware": {"processor": "CPU", "cores": 2, "memory_gib": 24.0, "gpus": [], "load_before": 0.1},
        "idle_cores": 0.0,
        "eager": False,
        "repeats": 2,
        "output_tokens": 10,
        "prompts": {
            "count": 1,
            "tokens_median": 5,
            "examined": 3,
            "too_long": 1,
            "looping": 1,
            "min_distinct_share": 0.9,
        },
        "rows": result_rows(runs()),
        "best": best_rows(runs()),
    }
    text = markdown(json.loads(json.dumps(result)))
    assert "| 1 | p-eagle | 3 | 135 (90 to 180) | 1.80 (1.80 to 1.80) | 1.50 (1.50 to 1.50) | 2.50 |" in text
    assert "1 led to a loop (under 90%" in text
    assert "0.750 0.500 0.250" in text
