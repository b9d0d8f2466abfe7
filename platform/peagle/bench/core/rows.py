"""What the runs of a comparison came to, as the plain values of `result.json`. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Protocol

from peagle.bench.core.closed_loop import Arrivals, Trace
from peagle.bench.core.statistics import (
    NO_DRAFTS,
    DraftCounts,
    Spread,
    cost_per_million_tokens,
    distinct_share,
    paired_ratio,
    percentile,
)
from peagle.bench.engines.engine_plan import EAGLE3, FIXED, NONE, PEAGLE, Variant
from peagle.bench.engines.speculation import LOOP_GRAM_TOKENS, Cell, Run, reference_variant

PERCENTILES = (50, 95, 99)
DISTINCT = f"distinct_{LOOP_GRAM_TOKENS}gram_ratio"

Row = dict[str, Any]


class Timed(Protocol):
    """One repeat of one cell, of an engine's or of a server's."""

    @property
    def output_tokens_per_s(self) -> float: ...
    @property
    def traces(self) -> Sequence[Arrivals]: ...


def result_rows(runs: Mapping[Cell, Sequence[Run]], price_per_hour: float | None = None) -> list[Row]:
    """One row for each variant and concurrency, in the order measured.

    With the price of one engine's machine for an hour, also `cost_per_million_tokens` of output, in its currency.

    Ratios are taken within each repeat and then summarised: `ratio_to_none` against no speculation, and
    `ratio_to_eagle3` against EAGLE-3 at the same K, each at the same concurrency, absent if that was not measured.
    """
    variants = list(dict.fromkeys(variant for variant, _ in runs))
    reference = reference_variant(variants)
    rows = []
    for (variant, level), cell in runs.items():
        row = _figures(variant, level, cell)
        row |= cost_figures(cell, price_per_hour)
        if reference is not None:
            row["ratio_to_none"] = speed_ratio(cell, runs[reference, level])
            row["outputs_equal_to_none_ratio"] = _equal_share(cell[0].traces, runs[reference, level][0].traces)
        rival = next((other for other in variants if (other.method, other.depth) == (EAGLE3, variant.depth)), None)
        if rival is not None and variant.method == PEAGLE:
            row["ratio_to_eagle3"] = speed_ratio(cell, runs[rival, level])
        rows.append(row)
    return rows


def best_rows(runs: Mapping[Cell, Sequence[Run]]) -> list[Row]:
    """At each concurrency, each method at its fastest K (by median), against no speculation and EAGLE-3's fastest."""
    rows = []
    for level in dict.fromkeys(level for _, level in runs):
        fastest: dict[str, tuple[Variant, Sequence[Run]]] = {}
        here = [(variant, cell) for (variant, at), cell in runs.items() if at == level]
        for variant, cell in here:
            known = fastest.get(variant.method)
            if not variant.ruled and (known is None or _speed(cell).median > _speed(known[1]).median):
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


def fastest_rows(runs: Mapping[Cell, Sequence[Run]]) -> list[Row]:
    """At each concurrency the fastest cell of all (by median), and its ratio to the next."""
    rows = []
    for level in dict.fromkeys(level for _, level in runs):
        here = [(variant, cell) for (variant, at), cell in runs.items() if at == level and not variant.held]
        (first, cell), *others = sorted(here, key=lambda each: _speed(each[1]).median, reverse=True)
        row: Row = {"concurrency": level, "variant": first.name, "output_tokens_per_s": asdict(_speed(cell))}
        if others:
            row |= {"next": others[0][0].name, "ratio_to_next": speed_ratio(cell, others[0][1])}
        rows.append(row)
    return rows


def _adaptive_row(
    variant: Variant, level: int, cell: Sequence[Run], fastest: Mapping[str, tuple[Variant, Sequence[Run]]]
) -> Row:
    """Adaptive depth against no speculation and its method's fastest static K."""
    row: Row = {"concurrency": level, "method": variant.method, "depth": variant.depth_name}
    if NONE in fastest:
        row["ratio_to_none"] = speed_ratio(cell, fastest[NONE][1])
    best, static = fastest[variant.method]
    row["depth_changes"] = [run.depth_changes for run in cell]
    row["depth_changes_per_minute"] = 60 * sum(row["depth_changes"]) / sum(run.seconds for run in cell)
    return row | {"ratio_to_best_static": speed_ratio(cell, static), "best_static_depth": best.depth}


def _held_row(variant: Variant, level: int, cell: Sequence[Run], fixed: Sequence[Run]) -> Row:
    """The rule, held at one K, against an engine of that K which cannot change it."""
    row: Row = {"concurrency": level, "method": variant.method, "depth": variant.depth_name}
    return row | {"ratio_to_fixed": speed_ratio(cell, fixed)}


def _figures(variant: Variant, level: int, cell: Sequence[Run]) -> Row:
    counts = sum((run.counts for run in cell), NO_DRAFTS)
    outputs = [trace.tokens for trace in cell[0].traces]
    return {
        "method": variant.method,
        "depth": variant.depth_name if variant.ruled else variant.depth,
        "concurrency": level,
        **client_figures(cell),
        "step_ms": asdict(Spread.of([1000 * run.step_s for run in cell])),
        **draft_figures(counts),
        "distinct_token_ratio": _mean([distinct_share(tokens) for tokens in outputs]),
        DISTINCT: _mean([distinct_share(t, LOOP_GRAM_TOKENS) for t in outputs]),
    }


def client_figures(cell: Sequence[Timed]) -> Row:
    """What clients see: output tokens/s, and percentiles of TTFT and ITL."""
    return {
        "output_tokens_per_s": asdict(_speed(cell)) | {"repeats": [run.output_tokens_per_s for run in cell]},
        **{f"ttft_ms_p{each}": _milliseconds(cell, each, first_s) for each in PERCENTILES},
        **{f"itl_ms_p{each}": _milliseconds(cell, each, gaps_s) for each in PERCENTILES},
    }


def draft_figures(counts: DraftCounts) -> Row:
    """What came of drafts; there is no acceptance length where nothing was drafted."""
    return {
        "acceptance_length": counts.acceptance_length,
        "acceptance_by_position": list(counts.acceptance_by_position),
        "depth_effective": counts.depth_effective,
        "drafts": counts.drafts,
        "drafted_by_position": list(counts.drafted),
        "accepted_by_position": list(counts.accepted),
    }


def cost_figures(cell: Sequence[Timed], price_per_hour: float | None) -> Row:
    """The cost of a million output tokens where the price of what serves them is known, else nothing."""
    if price_per_hour is None:
        return {}
    costs = [cost_per_million_tokens(price_per_hour, run.output_tokens_per_s) for run in cell]
    return {"cost_per_million_tokens": asdict(Spread.of(costs))}


def _speed(cell: Sequence[Timed]) -> Spread:
    return Spread.of([run.output_tokens_per_s for run in cell])


def speed_ratio(cell: Sequence[Timed], rival: Sequence[Timed]) -> Row:
    """Output tokens/s of one cell over those of another, taken within each repeat and then summarised."""
    return asdict(paired_ratio([run.output_tokens_per_s for run in cell], [run.output_tokens_per_s for run in rival]))


def _milliseconds(cell: Sequence[Timed], percent: int, pick: Callable[[Arrivals], list[float]]) -> Row | None:
    """None where no run has such a time: answers that come in one piece have no ITL."""
    runs = [run for run in cell if any(map(pick, run.traces))]
    return asdict(Spread.of([percentile_ms(run.traces, percent, pick) for run in runs])) if runs else None


def percentile_ms(traces: Iterable[Arrivals], percent: int, pick: Callable[[Arrivals], list[float]]) -> float:
    """Of all times that `pick` takes of these requests."""
    return 1000 * percentile(list(chain.from_iterable(map(pick, traces))), percent / 100)


def first_s(trace: Arrivals) -> list[float]:
    """The one TTFT of a request, for `percentile_ms`."""
    return [trace.ttft_s]


def gaps_s(trace: Arrivals) -> list[float]:
    """Every ITL of a request, for `percentile_ms`."""
    return trace.gaps_s


def _equal_share(traces: Sequence[Trace], reference: Sequence[Trace]) -> float:
    return _mean([float(one.tokens == other.tokens) for one, other in zip(traces, reference, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
