"""Reports of results, from runs whose figures can be computed by hand."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from peagle.bench.core.records import FIXED
from peagle.bench.engines.engine_plan import Variant
from peagle.bench.engines.published import published_ratios
from peagle.bench.engines.speculation_report import (
    best_line,
    fastest_by_concurrency,
    fastest_line,
    markdown,
    published_lines,
    result_table,
)
from peagle.bench.engines.speculation_rows import best_rows, fastest_rows, result_rows
from support.bench_runs import EAGLE3, NONE, PEAGLE3, PEAGLE7, run, runs


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
    repeats = [run(210), replace(run(95), depth_changes=2)]
    minutes = sum(one.seconds for one in repeats) / 60
    cells = {**runs(), (adaptive, 1): repeats}
    assert result_rows(cells)[-1]["depth"] == "adaptive"
    row = best_rows(cells)[-1]
    assert (row["depth"], row["best_static_depth"]) == ("adaptive", 7)
    assert row["ratio_to_best_static"] == {"median": 1.0, "low": 0.95, "high": 1.05}
    assert row["ratio_to_none"]["median"] == 2.0
    assert "1 at once: p-eagle K=adaptive: 2.00" in best_line(row)
    assert row["depth_changes_per_minute"] == pytest.approx(2 / minutes)
    assert f"K changed {2 / minutes:.1f} times a minute, trials included (by repeat 0, 2)" in best_line(row)


def test_the_rule_held_at_one_k_is_compared_with_an_engine_of_that_k_without_it() -> None:
    held, fixed = Variant(2, "p-eagle", 7, held=True), Variant(3, FIXED, 7)
    # Faster than every static K, which it must not replace.
    cells = {**runs(), (held, 1): [run(630), run(285)], (fixed, 1): [run(600), run(300)]}
    *others, row = best_rows(cells)
    assert row["ratio_to_fixed"] == {"median": 1.0, "low": 0.95, "high": 1.05}
    assert (
        best_line(row)
        == "1 at once: p-eagle K=7 held: 1.00 (0.95 to 1.05) times an engine of that K without live depth"
    )
    assert [each["depth"] for each in others if each["method"] == "p-eagle"] == [7]
    assert fastest_rows(cells)[0]["variant"] == fixed.name
    assert all(each["depth"] != "7 held" for each in fastest_by_concurrency(result_rows(cells))["p-eagle"])


def test_figures_come_from_every_repeat() -> None:
    row = result_rows(runs())[2]
    assert row["output_tokens_per_s"] == {"median": 135.0, "low": 90.0, "high": 180.0, "repeats": [180.0, 90.0]}
    assert row["acceptance_length"] == pytest.approx(1 + 6 / 4)
    assert row["acceptance_by_position"] == [0.75, 0.5, 0.25]
    assert row["drafts"] == 8
    assert row["ttft_ms_p50"]["median"] == pytest.approx(10)
    assert row["itl_ms_p95"]["median"] == row["itl_ms_p99"]["median"] == pytest.approx(20)
    assert row["step_ms"]["high"] == pytest.approx(1000 * 10 / 90 / 5)


def test_cost_is_the_price_of_the_time_that_a_million_tokens_take() -> None:
    row = result_rows(runs(), price_per_hour=3.6)[0]
    # At 100 tokens/s, a million tokens take 10,000 s.
    assert row["cost_per_million_tokens"] == {"median": pytest.approx(15.0), "low": 10.0, "high": 20.0}
    assert "cost_per_million_tokens" not in result_rows(runs())[0]


def test_the_fastest_cell_of_each_concurrency_is_named_with_its_lead() -> None:
    cells = {**runs(), (NONE, 8): [run(900), run(800)], (PEAGLE7, 8): [run(450), run(400)]}
    one, eight = fastest_rows(cells)
    assert (one["variant"], one["next"]) == ("p-eagle K=7", "p-eagle K=3")
    assert fastest_line(eight) == "8 at once: none, 850 (800 to 900) tokens/s, 2.00 (2.00 to 2.00) times p-eagle K=7"
    close = fastest_rows({(NONE, 1): [run(100), run(120)], (PEAGLE7, 1): [run(101), run(110)]})[0]
    assert fastest_line(close).endswith("tokens/s; not clearly, 1.04 (0.99 to 1.09) times p-eagle K=7")
    assert "next" not in fastest_rows({(NONE, 1): [run(100)]})[0]


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


def result(price_per_hour: float | None = None) -> dict[str, Any]:
    made = {
        "model": "model",
        "command": "peagle bench speculation model.yaml",
        "commit": None,
        "versions": {"vllm": "1.2"},
        "hardware": {"processor": "CPU", "cores": 2, "memory_gib": 24.0, "gpus": [], "load_before": 0.1},
        "idle_cores": 0.0,
        "sittings": 2,
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
        "price_per_hour": price_per_hour,
        "gpus_per_engine": 1,
        "rows": result_rows(runs(), price_per_hour),
        "best": best_rows(runs()),
        "fastest": fastest_rows(runs()),
    }
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain


def test_the_report_is_made_of_the_json_alone() -> None:
    text = markdown(result(), ["throughput.svg"])
    assert "| 1 | p-eagle | 3 | 135 (90 to 180) | 1.80 (1.80 to 1.80) | 1.50 (1.50 to 1.50) | 2.50 |" in text
    assert "1 led to a loop (under 90%" in text
    assert "0.750 0.500 0.250" in text
    assert "1 at once: p-eagle K=7, 150 (100 to 200) tokens/s" in text
    assert "![throughput](throughput.svg)" in text
    assert "started 2 times" in text
    assert "cost" not in text


@pytest.mark.parametrize(
    ("to_depth", "said"),
    [(False, "drafts the largest K and verifies K of it"), (True, "drafts K, and the largest")],
)
def test_the_report_says_what_the_engine_drafts(to_depth: bool, said: str) -> None:
    assert f"- P-EAGLE: one engine that {said}" in markdown(result() | {"drafts_to_depth": to_depth})


def test_every_row_of_a_table_is_as_wide_as_its_head() -> None:
    for text in (markdown(result()), markdown(result(price_per_hour=2.0))):
        lines = [line.count("|") if line.startswith("|") else 0 for line in text.splitlines()]
        assert all(one == other for one, other in pairwise(lines) if one and other)


@pytest.mark.parametrize("variant", [EAGLE3, Variant(2, "p-eagle", 7, adaptive=True)])
def test_the_table_fits_a_terminal_of_80_columns(variant: Variant) -> None:
    cells = {(NONE, 32): [run(1000), run(1200)], (PEAGLE3, 32): [run(900), run(1100)], (variant, 32): [run(1500)] * 2}
    console = Console(width=80)
    with console.capture() as shown:
        console.print(result_table(result_rows(cells)))
    assert variant.name in shown.get()
    assert "…" not in shown.get()


def test_a_price_adds_the_cost_of_each_cell() -> None:
    text = markdown(result(price_per_hour=3.6))
    assert "cost of 1 M tokens" in text
    assert "| 15 |" in text


def test_ratios_to_its_rivals_stand_beside_the_published_ones() -> None:
    text = markdown(result())
    assert "| 1 | 1.67 (1.67 to 1.67) | 1.55 | 1.55 | 1.69 | 1.12 | 1.22 | 1.43 |" in text
    assert "| 1 | 2.00 (2.00 to 2.00) | 1.52 | 3.97 | 2.97 |" in text
    assert all(each.source in text and each.model in text for each in published_ratios())
    over_eagle3, over_none = published_lines(result()["best"])
    assert (
        "1 at once, P-EAGLE over eagle3: 1.67 (1.67 to 1.67) here; published: 1.55 GPT-OSS 20B, MT-Bench" in over_eagle3
    )
    assert "1 at once, P-EAGLE over none: 2.00 (2.00 to 2.00) here; published: 1.52 GPT-OSS 120B" in over_none


def test_without_p_eagle_nothing_published_is_beside_it() -> None:
    changed = result() | {"best": best_rows({(NONE, 1): [run(100)], (EAGLE3, 1): [run(120)]})}
    assert "published" not in markdown(changed).lower()
    assert published_lines(changed["best"]) == []
