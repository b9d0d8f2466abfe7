"""A result as Markdown (`report.md`) and as a table on the terminal, from the values of `result.json`. Pure."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from rich import box
from rich.table import Table

from peagle.bench.core.rows import DISTINCT, PERCENTILES, Row
from peagle.bench.engines.engine_plan import EAGLE3, NONE, PEAGLE
from peagle.bench.engines.published import Published, published_ratios
from peagle.bench.engines.speculation import LOOP_GRAM_TOKENS


def result_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal of 80 columns; `report.md` has the other figures."""
    caption = "medians over repeats, tokens/s with its extremes; AL: tokens per verification step; ITL in ms"
    ratios = {"x none": "ratio_to_none", "x eagle3": "ratio_to_eagle3"}
    ratios = {heading: name for heading, name in ratios.items() if any(name in row for row in rows)}

    def cells(row: Row) -> list[str]:
        return [
            row["method"] if row["method"] == NONE else f"{row['method']} K={row['depth']}",
            spread_cell(row["output_tokens_per_s"], "{:.0f}"),
            *(median_cell(row.get(name), "{:.2f}") for name in ratios.values()),
            "" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}",
            median_cell(row["itl_ms_p50"], "{:.1f}"),
        ]

    return by_concurrency(("method", "tokens/s", *ratios, "AL", "ITL"), rows, cells, caption)


def by_concurrency(
    headings: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], Sequence[str]], caption: str
) -> Table:
    """A terminal's table with a section for each concurrency; `cells` of a row stand below `headings`, a name first.

    Where it is too wide, the names give way.
    """
    table = Table(box=box.SIMPLE_HEAD, caption=caption)
    table.add_column("at once", justify="right", no_wrap=True)
    for heading in headings:
        named = heading == headings[0]
        table.add_column(heading, justify="left" if named else "right", no_wrap=not named, overflow="fold")
    level = None
    for row in rows:
        if level not in (None, row["concurrency"]):
            table.add_section()
        level = row["concurrency"]
        table.add_row(str(level), *cells(row))
    return table


def markdown(result: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """`report.md`, from the values of `result.json`; `pictures` are files beside it."""
    machine, prompts, shifting = result["hardware"], result["prompts"], result.get("shifting")
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    priced = result["price_per_hour"] is not None
    headings = [*_HEADINGS, *(["cost of 1 M tokens"] if priced else [])]
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
        "- A step's time is the wall clock over the steps that gave tokens, prefill included.",
        *(
            [
                f"- Cost at {result['price_per_hour']:g} an hour for each GPU (on a CPU, for the machine), never idle; "
                f"{result['gpus_per_engine']} for each engine."
            ]
            if priced
            else []
        ),
        *(
            [f"- The engines were started {result['sittings']} times; like ones differ from start to start."]
            if result["sittings"] > 1
            else []
        ),
        f"- P-EAGLE: one engine that {_drafting(result)}. EAGLE-3: an engine for each K.",
        "",
        "The fastest cell at each concurrency:",
        "",
        *(f"- {fastest_line(row)}" for row in result["fastest"]),
        "",
        *markdown_table(headings, [_cells(row, priced) for row in result["rows"]]),
        "",
        *chain.from_iterable((f"![{name.partition('.')[0].replace('_', ' ')}]({name})", "") for name in pictures),
        "Each method at its fastest K:",
        "",
        *(f"- {best_line(row)}" for row in result["best"]),
        "",
        *_beside_published(result["best"]),
        *(
            ["While load and prompts shift:", "", *(f"- {shifting_line(row)}" for row in shifting), ""]
            if shifting
            else []
        ),
        *acceptance_lines(result["rows"]),
    ]
    return "\n".join(lines) + "\n"


def _drafting(result: Mapping[str, Any]) -> str:
    if result.get("drafts_to_depth"):
        return "drafts K, and the largest K in one step of eight"
    return "drafts the largest K and verifies K of it"


def acceptance_lines(rows: Sequence[Row]) -> list[str]:
    """Lines that give the acceptance by position of every row that has one."""
    lines = [
        f"- {row['method']} K={row['depth']}, {row['concurrency']} at once: "
        + " ".join(f"{value:.3f}" for value in row["acceptance_by_position"])
        for row in rows
        if row["acceptance_by_position"]
    ]
    return ["Probability that the first j drafts are all accepted:", "", *lines]


def fastest_line(row: Row) -> str:
    """One row of `fastest_rows` in words."""
    line = (
        f"{row['concurrency']} at once: {row['variant']}, {spread_cell(row['output_tokens_per_s'], '{:.0f}')} tokens/s"
    )
    if "next" not in row:
        return line
    lead = f"{spread_cell(row['ratio_to_next'], '{:.2f}')} times {row['next']}"
    return f"{line}, {lead}" if row["ratio_to_next"]["low"] > 1 else f"{line}; not clearly, {lead}"


def best_line(row: Row) -> str:
    """One row of `best_rows` in words."""
    name = row["method"] if row["method"] == NONE else f"{row['method']} K={row['depth']}"
    ratios = [
        f"{spread_cell(row[key], '{:.2f}')} times {words}"
        for key, words in (
            ("ratio_to_none", "no speculation"),
            ("ratio_to_best_eagle3", "the fastest EAGLE-3"),
            ("ratio_to_best_static", f"the fastest static K, {row.get('best_static_depth')}"),
            ("ratio_to_fixed", "an engine of that K without live depth"),
        )
        if key in row
    ]
    if (changes := row.get("depth_changes_per_minute")) is not None:
        by_repeat = ", ".join(map(str, row["depth_changes"]))
        ratios.append(f"K changed {changes:.1f} times a minute, trials included (by repeat {by_repeat})")
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
    "at once", "method", "K", "tokens/s", "x none", "x eagle3", "AL", "step ms",
    *(f"TTFT ms p{each}" for each in PERCENTILES), *(f"ITL ms p{each}" for each in PERCENTILES), "distinct", "= none",
)  # fmt: skip


def _cells(row: Row, priced: bool = False) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        "" if row["method"] == NONE else str(row["depth"]),
        spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        spread_cell(row.get("ratio_to_none"), "{:.2f}"),
        spread_cell(row.get("ratio_to_eagle3"), "{:.2f}"),
        "" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}",
        median_cell(row["step_ms"], "{:.1f}"),
        *(median_cell(row[f"{kind}_ms_p{each}"], "{:.1f}") for kind in ("ttft", "itl") for each in PERCENTILES),
        f"{row[DISTINCT]:.0%}",
        "" if row.get("outputs_equal_to_none_ratio") is None else f"{row['outputs_equal_to_none_ratio']:.0%}",
        *([median_cell(row["cost_per_million_tokens"], "{:.3g}")] if priced else []),
    ]


def published_lines(best: Sequence[Row]) -> list[str]:
    """Rows of `best_rows` that something published can stand beside, each with it, in words."""
    return [
        f"{row['concurrency']} at once, P-EAGLE over {rival}: {spread_cell(row[key], '{:.2f}')} here; published: "
        + ", ".join(f"{each.ratios[row['concurrency']]:.2f} {each.name}" for each in published)
        for rival, key, rows in _over_rivals(best)
        for row in rows
        if (published := [each for each in _published(rival) if row["concurrency"] in each.ratios])
    ]


def _over_rivals(best: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """P-EAGLE's static rows that hold a ratio to a rival: the rival, the ratio's name, and the rows."""
    ours = [row for row in best if row["method"] == PEAGLE and isinstance(row["depth"], int)]
    rivals = ((EAGLE3, "ratio_to_best_eagle3"), (NONE, "ratio_to_none"))
    return [(rival, key, [row for row in ours if key in row]) for rival, key in rivals]


def _published(rival: str) -> list[Published]:
    return [each for each in published_ratios() if each.rival == rival]


def _beside_published(best: Sequence[Row]) -> list[str]:
    """P-EAGLE over EAGLE-3 and over none, here and as published; nothing where P-EAGLE was not measured with them."""
    lines = []
    for rival, key, rows in _over_rivals(best):
        published = _published(rival)
        cells = [
            [
                str(row["concurrency"]),
                spread_cell(row[key], "{:.2f}"),
                *(median_cell({"median": each.ratios.get(row["concurrency"])}, "{:.2f}") for each in published),
            ]
            for row in rows
        ]
        if rows:
            lines += [f"P-EAGLE over {rival}, each at its fastest K, beside what is published:", ""]
            lines += [*markdown_table(["at once", "here", *(each.name for each in published)], cells), ""]
    if lines:
        sources = dict.fromkeys(f"{each.model} on {each.gpu} ({each.source})" for each in published_ratios())
        lines += [f"Published: {'; '.join(sources)}. Other machines, models and texts: for scale.", ""]
    return lines


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table whose first two columns hold words."""
    rule = "| --- | --- |" + " ---: |" * (len(headings) - 2)
    return [f"| {' | '.join(headings)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


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
    return "" if spread is None or spread["median"] is None else form.format(spread["median"])
