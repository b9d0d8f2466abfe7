"""The bounds for figures measured on a GPU; the figures themselves are made up here."""

from typing import Any

import pytest

from support.engines.gpu_lines import ADAPTIVE, DEPTHS, LOADS, TRIAL_STEP_MS, Line, all_lines, shown, table


def rows(variants: tuple[int | str, ...], speed: float = 100.0, loads: tuple[int, ...] = LOADS) -> list[dict[str, Any]]:
    return [
        {
            "load": load,
            "variant": variant,
            "tokens_per_s": [speed * load, 1.1 * speed * load, 0.9 * speed * load],
            "step_ms": TRIAL_STEP_MS[load].get(variant) if isinstance(variant, int) else None,
            "first_step_ratio": 1.2 if isinstance(variant, int) else None,
        }
        for load in loads
        for variant in variants
    ]


def measured() -> dict[str, Any]:
    drafting = rows((*DEPTHS, ADAPTIVE))
    for row in drafting:
        if (row["load"], row["variant"]) == (128, 7):
            row["tokens_per_s"] = [80.0 * 128] * 3
        if (row["load"], row["variant"]) == (128, 1):
            row["step_ms"] = 1.3 * TRIAL_STEP_MS[128][0]
    steps = {"full": 995, "piecewise": 4, "none": 1}
    return {
        "none": {"rows": rows((0,))},
        "p-eagle": {"rows": drafting, "compiled": 0, "steps_by_graph": steps},
        "eagle3 K=3": {"rows": rows((3,), 80.0, (1, 32))},
        "eagle3 K=7": {"rows": rows((7,), 50.0, (1, 32))},
    }


def by_name(engines: dict[str, Any], checks: dict[str, str | None] | None = None) -> dict[str, Line]:
    return {line.name: line for line in all_lines(engines, {"a": None} if checks is None else checks)}


def test_all_lines_hold_where_each_figure_is_within_its_bound() -> None:
    lines = [*by_name(measured()).values()]
    assert [line.holds for line in lines] == [True] * 9 + [None] * 2
    assert shown(lines)
    assert [line.found for line in lines[-2:]] == ["1.25 at 1, 1.25 at 32", "2.00 at 1, 2.00 at 32"]


def change(engines: dict[str, Any], load: int, variant: int | str, **values: Any) -> None:
    (row,) = [row for row in engines["p-eagle"]["rows"] if (row["load"], row["variant"]) == (load, variant)]
    row.update(values)


@pytest.mark.parametrize(
    ("name", "at", "values"),
    [
        ("decode step over the trial's, worst of all K and loads", (64, 3), {"step_ms": 14.4}),
        ("tokens/s at K = 0 over an engine without a drafter, least of all loads", (8, 0), {"tokens_per_s": [770.0]}),
        ("decode step at K = 1 over K = 0, 128 at once", (128, 1), {"step_ms": 10.5}),
        ("adaptive over the best static K, least of all loads", (32, ADAPTIVE), {"tokens_per_s": [3100.0]}),
        ("adaptive over static K = 7, 128 at once", (128, 7), {"tokens_per_s": [11000.0]}),
        ("first decode step of a K over a later one, worst of all", (8, 2), {"first_step_ratio": 1.6}),
    ],
)
def test_a_figure_beyond_its_bound_fails_its_line_alone(
    name: str, at: tuple[int, int | str], values: dict[str, Any]
) -> None:
    engines = measured()
    change(engines, *at, **values)
    assert [line.name for line in by_name(engines).values() if line.holds is False] == [name]


def test_steps_outside_full_graphs_and_late_kernels_fail() -> None:
    engines = measured()
    engines["p-eagle"] |= {"compiled": 2, "steps_by_graph": {"full": 98, "piecewise": 2}}
    failed = {line.name: line.found for line in by_name(engines).values() if line.holds is False}
    assert failed == {
        "share of decode steps in full graphs": "0.9800",
        "kernels compiled after the engine was ready": "2",
    }


def test_a_check_that_fails_is_named() -> None:
    line = by_name(measured(), {"a": None, "b": "no"})["checks of the embedded model, float32"]
    assert (line.holds, line.found) == (False, "1 of 2 (b: no)")
    assert by_name(measured(), {})["checks of the embedded model, float32"].holds is False


def test_a_missing_figure_neither_holds_nor_fails() -> None:
    lines = by_name({name: {"error": "it did not start", "rows": []} for name in measured()})
    assert {line.holds for line in lines.values()} == {True, None}
    assert not shown([*lines.values()])
    assert "not measured" in lines["adaptive over static K = 7, 128 at once"].found


def test_the_table_has_a_row_for_each_line() -> None:
    shown = table([*by_name(measured()).values()]).splitlines()
    assert len(shown) == 11
    assert all(line.startswith(("holds", "-")) for line in shown)
