"""Results as plain values (`result.json`), as Markdown (`report.md`) and as a table on the terminal. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from rich import box
from rich.table import Table

from peagle.bench.load import Trace
from peagle.bench.plan import EAGLE3, NONE, PEAGLE, Variant
from peagle.bench.speculation import LOOP_GRAM_TOKENS, Cell, Run, reference_variant
from peagle.bench.statistics import NO_DRAFTS, Spread, distinct_share, paired_ratio, percentile

SCHEMA_VERSION = 1
_DISTINCT = f"distinct_{LOOP_GRAM_TOKENS}gram_ratio"

Row = dict[str, Any]


def result_rows(runs: Mapping[Cell, Sequence[Run]]) -> list[Row]:
    """One row for each variant and concurrency, in the order measured.

    Ratios are taken within each repeat and then summarised: `ratio_to_none` against no speculation, and
    `ratio_to_eagle3` against EAGLE-3 at the same K, each at the same concurrency, absent if that was not measured.
    """
    variants = list(dict.fromkeys(variant for variant, _ in runs))
    reference = reference_variant(variants)
    rows = []
    for (variant, level), cell in runs.items():
        row = _figures(variant, level, cell)
        if reference is not None:
            row["ratio_to_none"] = _ratio(cell, runs[reference, level])
            row["outputs_equal_to_none_ratio"] = _equal_share(cell[0].traces, runs[reference, level][0].traces)
        rival = next((other for other in variants if (other.method, other.depth) == (EAGLE3, variant.depth)), None)
        if rival is not None and variant.method == PEAGLE:
            row["ratio_to_eagle3"] = _ratio(cell, runs[rival, level])
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
            if not variant.adaptive and (known is None or _speed(cell).median > _speed(known[1]).median):
                fastest[variant.method] = (variant, cell)
        for method, (variant, cell) in fastest.items():
            row: Row = {"concurrency": level, "method": method, "depth": variant.depth}
            for rival, name in ((NONE, "ratio_to_none"), (EAGLE3, "ratio_to_best_eagle3")):
                if rival in fastest and rival != method:
                    row[name] = _ratio(cell, fastest[rival][1])
            rows.append(row)
        rows += [_adaptive_row(variant, level, cell, fastest) for variant, cell in here if variant.adaptive]
    return rows


def _adaptive_row(
    variant: Variant, level: int, cell: Sequence[Run], fastest: Mapping[str, tuple[Variant, Sequence[Run]]]
) -> Row:
    """Adaptive depth against no speculation and against its method's fastest static K."""
    row: Row = {"concurrency": level, "method": variant.method, "depth": variant.depth_name}
    if NONE in fastest:
        row["ratio_to_none"] = _ratio(cell, fastest[NONE][1])
    best, static = fastest[variant.method]
    return row | {"ratio_to_best_static": _ratio(cell, static), "best_static_depth": best.depth}


def _figures(variant: Variant, level: int, cell: Sequence[Run]) -> Row:
    counts = sum((run.counts for run in cell), NO_DRAFTS)
    outputs = [trace.tokens for trace in cell[0].traces]
    return {
        "method": variant.method,
        "depth": variant.depth_name if variant.adaptive else variant.depth,
        "concurrency": level,
        "output_tokens_per_s": asdict(_speed(cell)) | {"repeats": [run.output_tokens_per_s for run in cell]},
        "ttft_ms_p50": _milliseconds(cell, 0.5, _first),
        "ttft_ms_p95": _milliseconds(cell, 0.95, _first),
        "itl_ms_p50": _milliseconds(cell, 0.5, _gaps),
        "itl_ms_p95": _milliseconds(cell, 0.95, _gaps),
        "acceptance_length": counts.acceptance_length,
        "acceptance_by_position": list(counts.acceptance_by_position),
        "depth_effective": counts.depth_effective,
        "drafts": counts.drafts,
        "drafted_by_position": list(counts.drafted),
        "accepted_by_position": list(counts.accepted),
        "distinct_token_ratio": _mean([distinct_share(tokens) for tokens in outputs]),
        _DISTINCT: _mean([distinct_share(t, LOOP_GRAM_TOKENS) for t in outputs]),
    }


def result_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal, without the columns that only `report.md` has room for."""
    caption = "medians over repeats, tokens/s with its extremes; AL: tokens per verification step; TTFT and ITL in ms"
    table = Table(box=box.SIMPLE_HEAD, caption=caption)
    for heading in ("at once", "method", "K", "tokens/s", "x none", "x eagle3", "AL", "TTFT", "ITL", "distinct"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    level = None
    for row in rows:
        if level not in (None, row["concurrency"]):
            table.add_section()
        level = row["concurrency"]
        table.add_row(
            *_cells(row)[:4],
            *(median_cell(row.get(name), "{:.2f}") for name in ("ratio_to_none", "ratio_to_eagle3")),
            _cells(row)[6],
            *(median_cell(row[name], "{:.1f}") for name in ("ttft_ms_p50", "itl_ms_p50")),
            f"{row[_DISTINCT]:.0%}",
        )
    return table


def markdown(result: Mapping[str, Any]) -> str:
    """`report.md`, from the values of `result.json`."""
    machine, prompts, shifting = result["hardware"], result["prompts"], result.get("shifting")
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    lines = [
        f"# Speculation on {result['model']}",
        "",
        f"`{result['command']}`",
        "",
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{gpus}; "
        f"load {machine['load_before']} before the start, {result['idle_cores']:.2f} cores busy with all engines idle.",
        f"- Versions: {versions}; commit {result['commit'] or 'unknown'}.",
        f"- {prompts['count']} prompts of {prompts['tokens_median']} tokens in the median, {result['output_tokens']} "
        f"output tokens each, greedy, end of text ignored; {result['repeats']} repeats; "
        f"{'eager' if result['eager'] else 'compiled'}. {_selection(prompts)}",
        "- Every method runs a set of prompts before any runs the next; ratios pair what the same repeat measured; "
        "the prompt cache is cleared before every pass. Figures are medians with extremes over repeats.",
        "- ITL is the time between two outputs of one request, and one output may carry several tokens. AL is tokens "
        "per verification step, the bonus token included.",
        "- P-EAGLE: one engine that drafts the largest K and verifies K of it. EAGLE-3: an engine for each K.",
        "",
        "| " + " | ".join(_HEADINGS) + " |",
        "| --- |" + " ---: |" * (len(_HEADINGS) - 1),
        *("| " + " | ".join(_cells(row)) + " |" for row in result["rows"]),
        "",
        "Each method at its fastest K:",
        "",
        *(f"- {best_line(row)}" for row in result["best"]),
        "",
        *(
            ["While load and prompts shift:", "", *(f"- {shifting_line(row)}" for row in shifting), ""]
            if shifting
            else []
        ),
        "Probability that the first j drafts are all accepted:",
        "",
        *(
            f"- {row['method']} K={row['depth']}, {row['concurrency']} at once: "
            + " ".join(f"{value:.3f}" for value in row["acceptance_by_position"])
            for row in result["rows"]
            if row["acceptance_by_position"]
        ),
    ]
    return "\n".join(lines) + "\n"


def best_line(row: Row) -> str:
    """One row of `best_rows` in words."""
    name = row["method"] if row["method"] == NONE else f"{row['method']} K={row['depth']}"
    ratios = [
        f"{spread_cell(row[key], '{:.2f}')} times {words}"
        for key, words in (
            ("ratio_to_none", "no speculation"),
            ("ratio_to_best_eagle3", "the fastest EAGLE-3"),
            ("ratio_to_best_static", f"the fastest static K, {row.get('best_static_depth')}"),
        )
        if key in row
    ]
    return f"{row['concurrency']} at once: {name}" + (f": {', '.join(ratios)}" if ratios else "")


def shifting_line(row: Row) -> str:
    """One row of `shifting_rows` in words."""
    parts = [f"{row['variant']}: {spread_cell(row['output_tokens_per_s'], '{:.0f}')} tokens/s"]
    if "ratio_to_best_static" in row:
        parts.append(f"{spread_cell(row['ratio_to_best_static'], '{:.2f}')} times {row['best_static']}")
        parts.append("K settled after " + ", ".join(f"{seconds:.1f}" for seconds in row["settled_s"]) + " s at most")
    if "ratio_to_none" in row:
        parts.append(f"{spread_cell(row['ratio_to_none'], '{:.2f}')} times no speculation")
    return ", ".join(parts)


_HEADINGS = (
    "at once", "method", "K", "tokens/s", "x none", "x eagle3", "AL", "TTFT ms p50", "p95", "ITL ms p50", "p95",
    "distinct", "= none",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        "" if row["method"] == NONE else str(row["depth"]),
        spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        spread_cell(row.get("ratio_to_none"), "{:.2f}"),
        spread_cell(row.get("ratio_to_eagle3"), "{:.2f}"),
        "" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}",
        *(median_cell(row[name], "{:.1f}") for name in ("ttft_ms_p50", "ttft_ms_p95", "itl_ms_p50", "itl_ms_p95")),
        f"{row[_DISTINCT]:.0%}",
        "" if row.get("outputs_equal_to_none_ratio") is None else f"{row['outputs_equal_to_none_ratio']:.0%}",
    ]


def _selection(prompts: Mapping[str, Any]) -> str:
    text = f"{prompts['examined']} prompts were looked at, {prompts['too_long']} were too long"
    if prompts["min_distinct_share"] is not None:
        text += (
            f", {prompts['looping']} led to a loop (under {prompts['min_distinct_share']:.0%} of an output's "
            f"{LOOP_GRAM_TOKENS}-grams were distinct)"
        )
    return text + "."


def spread_cell(spread: Mapping[str, Any] | None, form: str) -> str:
    """A median and its extremes; empty where nothing was measured."""
    if spread is None:
        return ""
    return f"{form.format(spread['median'])} ({form.format(spread['low'])} to {form.format(spread['high'])})"


def median_cell(spread: Mapping[str, Any] | None, form: str) -> str:
    """A median alone."""
    return "" if spread is None else form.format(spread["median"])


def _speed(cell: Sequence[Run]) -> Spread:
    return Spread.of([run.output_tokens_per_s for run in cell])


def _ratio(cell: Sequence[Run], rival: Sequence[Run]) -> Row:
    return asdict(paired_ratio([run.output_tokens_per_s for run in cell], [run.output_tokens_per_s for run in rival]))


def _milliseconds(cell: Sequence[Run], ratio: float, pick: Any) -> Row:
    return asdict(
        Spread.of([1000 * percentile(list(chain.from_iterable(map(pick, run.traces))), ratio) for run in cell])
    )


def _first(trace: Trace) -> list[float]:
    return [trace.ttft_s]


def _gaps(trace: Trace) -> list[float]:
    return trace.gaps_s


def _equal_share(traces: Sequence[Trace], reference: Sequence[Trace]) -> float:
    return _mean([float(one.tokens == other.tokens) for one, other in zip(traces, reference, strict=True)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
