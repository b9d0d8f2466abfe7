"""Results of a comparison of engines as the plain values of `result.json`. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from statistics import fmean

from peagle.bench.core.closed_loop import Trace
from peagle.bench.core.records import EAGLE3, FIXED, NONE, PEAGLE, Runs
from peagle.bench.core.rows import (
    Cell,
    Row,
    client_figures,
    cost_figures,
    draft_figures,
    equal_share,
    speed,
    speed_ratio,
)
from peagle.bench.core.statistics import Spread, distinct_share
from peagle.bench.engines.engine_plan import Variant
from peagle.bench.engines.speculation import LOOP_GRAM_TOKENS

DISTINCT = f"distinct_{LOOP_GRAM_TOKENS}gram_ratio"


def result_rows(runs: Runs[Variant, Trace], price_per_hour: float | None = None) -> list[Row]:
    """Return one row per variant and concurrency, in the order measured.

    With the hourly price of one engine's machine, rows have `cost_per_million_tokens` of output, in its currency.

    Ratios are taken within each repeat and then summarised: `ratio_to_none` against no speculation, and
    `ratio_to_eagle3` against EAGLE-3 at the same K, each at the same concurrency, absent if that was not measured.
    """
    variants = list(dict.fromkeys(variant for variant, _ in runs))
    reference = next((variant for variant in variants if variant.method == NONE), None)
    rows = []
    for (variant, level), cell in runs.items():
        row = _figures(variant, level, cell)
        row |= cost_figures(cell, price_per_hour)
        if reference is not None:
            row["ratio_to_none"] = speed_ratio(cell, runs[reference, level])
            row["outputs_equal_to_none_ratio"] = equal_share(_tokens(cell), _tokens(runs[reference, level]))
        rival = next((other for other in variants if (other.method, other.depth) == (EAGLE3, variant.depth)), None)
        if rival is not None and variant.method == PEAGLE:
            row["ratio_to_eagle3"] = speed_ratio(cell, runs[rival, level])
        rows.append(row)
    return rows


def best_rows(runs: Runs[Variant, Trace]) -> list[Row]:
    """Return each method's fastest K (by median) per concurrency, against no speculation and EAGLE-3's fastest."""
    rows = []
    for level in dict.fromkeys(level for _, level in runs):
        fastest: dict[str, tuple[Variant, Cell]] = {}
        here = [(variant, cell) for (variant, at), cell in runs.items() if at == level]
        for variant, cell in here:
            known = fastest.get(variant.method)
            if not variant.ruled and (known is None or speed(cell).median > speed(known[1]).median):
                fastest[variant.method] = (variant, cell)
        for method, (variant, cell) in fastest.items():
            row: Row = {"concurrency": level, "method": method, "depth": variant.depth}
            for rival, name in ((NONE, "ratio_to_none"), (EAGLE3, "ratio_to_best_eagle3")):
                if rival in fastest and rival != method:
                    row[name] = speed_ratio(cell, fastest[rival][1])
            rows.append(row)
        rows += [_adaptive_row(variant, level, cell, fastest) for variant, cell in here if variant.adaptive]
        if FIXED in fastest:
            rows += [_held_row(variant, level, cell, fastest[FIXED][1]) for variant, cell in here if variant.held]
    return rows


def fastest_rows(runs: Runs[Variant, Trace]) -> list[Row]:
    """Return the fastest cell (by median) per concurrency, with its ratio to the next."""
    rows = []
    for level in dict.fromkeys(level for _, level in runs):
        here = [(variant, cell) for (variant, at), cell in runs.items() if at == level and not variant.held]
        (first, cell), *others = sorted(here, key=lambda each: speed(each[1]).median, reverse=True)
        row: Row = {"concurrency": level, "variant": first.name, "output_tokens_per_s": asdict(speed(cell))}
        if others:
            row |= {"next": others[0][0].name, "ratio_to_next": speed_ratio(cell, others[0][1])}
        rows.append(row)
    return rows


def _adaptive_row(variant: Variant, level: int, cell: Cell, fastest: Mapping[str, tuple[Variant, Cell]]) -> Row:
    """Return adaptive depth against no speculation and its method's fastest static K."""
    row: Row = {"concurrency": level, "method": variant.method, "depth": variant.depth_name}
    if NONE in fastest:
        row["ratio_to_none"] = speed_ratio(cell, fastest[NONE][1])
    best, static = fastest[variant.method]
    row["depth_changes"] = [run.depth_changes for run in cell]
    row["depth_changes_per_minute"] = 60 * sum(row["depth_changes"]) / sum(run.seconds for run in cell)
    return row | {"ratio_to_best_static": speed_ratio(cell, static), "best_static_depth": best.depth}


def _held_row(variant: Variant, level: int, cell: Cell, fixed: Cell) -> Row:
    """Return the rule held at one K against an engine with that fixed K."""
    row: Row = {"concurrency": level, "method": variant.method, "depth": variant.depth_name}
    return row | {"ratio_to_fixed": speed_ratio(cell, fixed)}


def _figures(variant: Variant, level: int, cell: Cell) -> Row:
    outputs = _tokens(cell)
    return {
        "method": variant.method,
        "depth": variant.depth_name if variant.ruled else variant.depth,
        "concurrency": level,
        **client_figures(cell),
        "step_ms": asdict(Spread.of([1000 * (run.seconds / run.steps) for run in cell])),
        **draft_figures(cell),
        "distinct_token_ratio": fmean([distinct_share(tokens) for tokens in outputs]),
        DISTINCT: fmean([distinct_share(t, LOOP_GRAM_TOKENS) for t in outputs]),
    }


def _tokens(cell: Cell) -> list[tuple[int, ...]]:
    """Return the outputs of the first repeat."""
    return [trace.tokens for trace in cell[0].traces]
