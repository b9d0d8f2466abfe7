"""A comparison of engines as Markdown, a table, lines and pictures, from the values of `result.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from peagle.bench.core import report_parts as parts
from peagle.bench.core.output import Form
from peagle.bench.core.records import EAGLE3, FIXED, NONE, PEAGLE
from peagle.bench.core.rows import Row
from peagle.bench.engines.published import Published, published_ratios
from peagle.bench.engines.speculation import LOOP_GRAM_TOKENS
from peagle.bench.engines.speculation_rows import DISTINCT
from peagle.bench.engines.step_costs import cost_lines

ADAPTIVE = f"{PEAGLE}, adaptive"
STYLES = {NONE: "grey", EAGLE3: "olive", PEAGLE: "blue", FIXED: "green", ADAPTIVE: "purple"}


def result_table(rows: Sequence[Row]) -> Table:
    """Return a table for a terminal of 80 columns; `report.md` has the other figures."""
    caption = "medians over repeats, tokens/s with its extremes; AL: tokens per verification step; ITL in ms"
    ratios = {"x none": "ratio_to_none", "x eagle3": "ratio_to_eagle3"}
    ratios = {heading: name for heading, name in ratios.items() if any(name in row for row in rows)}

    def cells(row: Row) -> list[str]:
        return [
            row["method"] if row["method"] == NONE else f"{row['method']} K={row['depth']}",
            parts.spread_cell(row["output_tokens_per_s"], "{:.0f}"),
            *(parts.median_cell(row.get(name), "{:.2f}") for name in ratios.values()),
            parts.number_cell(row["acceptance_length"], "{:.2f}"),
            parts.median_cell(row["itl_ms_p50"], "{:.1f}"),
        ]

    return parts.by_concurrency(("method", "tokens/s", *ratios, "AL", "ITL"), rows, cells, caption)


def markdown(result: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """Return `report.md` from the values of `result.json`; `pictures` are files next to it."""
    rows, price, shifting = result["rows"], result["price_per_hour"], result.get("shifting")
    lines = [
        f"# Speculation on {result['model']}",
        "",
        f"`{result['command']}`",
        "",
        *parts.machine_lines(result, "engines"),
        f"{parts.prompts_line(result)}{_looping(result['prompts'])}.",
        "- Every method runs a set of prompts before any runs the next; ratios pair what the same repeat measured; "
        "the prompt cache is cleared before every pass. Figures are medians with extremes over repeats.",
        "- ITL is the time between two outputs of one request, and one output may carry several tokens. AL is tokens "
        "per verification step, the bonus token included.",
        "- A step's time is the wall clock over the steps that gave tokens, prefill included.",
        *(
            [
                f"- Cost at {price:g} an hour for each GPU (on a CPU, for the machine), never idle; "
                f"{result['gpus_per_engine']} for each engine."
            ]
            if price is not None
            else []
        ),
        *parts.sittings_lines(result, "engines"),
        f"- P-EAGLE: one engine that {_drafting(result)}. EAGLE-3: an engine for each K.",
        *_acceptance_line(result),
        "",
        "The fastest cell at each concurrency:",
        "",
        *(f"- {fastest_line(row)}" for row in result["fastest"]),
        "",
        *parts.markdown_table([*_HEADINGS, *parts.cost_headings(rows)], [_cells(row) for row in rows]),
        "",
        *parts.picture_lines(pictures),
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
        *cost_lines(result),
        *parts.acceptance_lines(rows),
    ]
    return "\n".join(lines) + "\n"


def _drafting(result: Mapping[str, Any]) -> str:
    if result.get("drafts_to_depth"):
        return "drafts K, and the largest K in one step of eight"
    return "drafts the largest K and verifies K of it"


def _acceptance_line(result: Mapping[str, Any]) -> list[str]:
    if not (curve := result.get("acceptance")):
        return []
    shown = ", ".join(f"{rate:g}" for rate in curve)
    return [f"- Drafts are accepted by a given curve, whatever they are: {shown}. So texts differ from those of none."]


def fastest_line(row: Row) -> str:
    """Describe one row of `fastest_rows`."""
    speed = parts.spread_cell(row["output_tokens_per_s"], "{:.0f}")
    line = f"{row['concurrency']} at once: {row['variant']}, {speed} tokens/s"
    if "next" not in row:
        return line
    lead = f"{parts.spread_cell(row['ratio_to_next'], '{:.2f}')} times {row['next']}"
    return f"{line}, {lead}" if row["ratio_to_next"]["low"] > 1 else f"{line}; not clearly, {lead}"


def best_line(row: Row) -> str:
    """Describe one row of `best_rows`."""
    name = row["method"] if row["method"] == NONE else f"{row['method']} K={row['depth']}"
    ratios = [
        f"{parts.spread_cell(row[key], '{:.2f}')} times {words}"
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
    """Describe one row of `shifting_rows`."""
    said = [f"{row['variant']}: {parts.spread_cell(row['output_tokens_per_s'], '{:.0f}')} tokens/s"]
    if "ratio_to_best_static" in row:
        said.append(f"{parts.spread_cell(row['ratio_to_best_static'], '{:.2f}')} times {row['best_static']}")
        said.append("K settled after " + ", ".join(f"{seconds:.1f}" for seconds in row["settled_s"]) + " s at most")
    if "ratio_to_none" in row:
        said.append(f"{parts.spread_cell(row['ratio_to_none'], '{:.2f}')} times no speculation")
    return ", ".join(said)


_HEADINGS = (
    "at once", "method", "K", "tokens/s", "x none", "x eagle3", "AL", "step ms",
    *parts.percentile_headings("TTFT"), *parts.percentile_headings("ITL"), "distinct", "= none",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        "" if row["method"] == NONE else str(row["depth"]),
        parts.spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        parts.spread_cell(row.get("ratio_to_none"), "{:.2f}"),
        parts.spread_cell(row.get("ratio_to_eagle3"), "{:.2f}"),
        parts.number_cell(row["acceptance_length"], "{:.2f}"),
        parts.median_cell(row["step_ms"], "{:.1f}"),
        *parts.percentile_cells(row, "TTFT"),
        *parts.percentile_cells(row, "ITL"),
        f"{row[DISTINCT]:.0%}",
        parts.number_cell(row.get("outputs_equal_to_none_ratio"), "{:.0%}"),
        *parts.cost_cells(row),
    ]


def published_lines(best: Sequence[Row]) -> list[str]:
    """Describe the rows of `best_rows` that have a published counterpart, with both figures."""
    return [
        f"{row['concurrency']} at once, P-EAGLE over {rival}: {parts.spread_cell(row[key], '{:.2f}')} here; published: "
        + ", ".join(f"{each.ratios[row['concurrency']]:.2f} {each.name}" for each in published)
        for rival, key, rows in _over_rivals(best)
        for row in rows
        if (published := [each for each in _published(rival) if row["concurrency"] in each.ratios])
    ]


def _over_rivals(best: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Return P-EAGLE's static rows with a ratio to a rival: the rival, the ratio's name, and the rows."""
    ours = [row for row in best if row["method"] == PEAGLE and isinstance(row["depth"], int)]
    rivals = ((EAGLE3, "ratio_to_best_eagle3"), (NONE, "ratio_to_none"))
    return [(rival, key, [row for row in ours if key in row]) for rival, key in rivals]


def _published(rival: str) -> list[Published]:
    return [each for each in published_ratios() if each.rival == rival]


def _beside_published(best: Sequence[Row]) -> list[str]:
    """Return lines on P-EAGLE over EAGLE-3 and over none, here and as published; empty if not measured."""
    lines = []
    for rival, key, rows in _over_rivals(best):
        published = _published(rival)
        cells = [
            [
                str(row["concurrency"]),
                parts.spread_cell(row[key], "{:.2f}"),
                *(parts.median_cell({"median": each.ratios.get(row["concurrency"])}, "{:.2f}") for each in published),
            ]
            for row in rows
        ]
        if rows:
            lines += [f"P-EAGLE over {rival}, each at its fastest K, next to published ratios:", ""]
            lines += [*parts.markdown_table(["at once", "here", *(each.name for each in published)], cells), ""]
    if lines:
        sources = dict.fromkeys(f"{each.model} on {each.gpu} ({each.source})" for each in published_ratios())
        lines += [f"Published: {'; '.join(sources)}. Other machines, models and texts: for scale.", ""]
    return lines


def _looping(prompts: Mapping[str, Any]) -> str:
    if prompts["min_distinct_share"] is None:
        return ""
    return (
        f", {prompts['looping']} led to a loop (under {prompts['min_distinct_share']:.0%} of an output's "
        f"{LOOP_GRAM_TOKENS}-grams were distinct)"
    )


def summary(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table."""
    return [
        *map(fastest_line, result["fastest"]),
        *map(best_line, result["best"]),
        *published_lines(result["best"]),
        *map(shifting_line, result["shifting"]),
    ]


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw throughput, acceptance length if there were drafts, and cost if a price is known."""
    from peagle.bench.core.plots import lines_by_concurrency, lines_by_depth  # optional: it needs matplotlib

    rows, fastest, note = result["rows"], fastest_by_concurrency(result["rows"]), "(each method at its fastest K)"
    drawn = {"throughput.svg": lines_by_concurrency(fastest, "output_tokens_per_s", f"Output tokens/s\n{note}", STYLES)}
    if lengths := acceptance_by_depth(rows):
        label = "Acceptance length\n(tokens a step, all concurrencies)"
        drawn["acceptance_length.svg"] = lines_by_depth(lengths, label, STYLES)
    if result["price_per_hour"] is not None:
        label = f"Cost of a million output tokens\n{note}"
        drawn["cost.svg"] = lines_by_concurrency(fastest, "cost_per_million_tokens", label, STYLES)
    return drawn


def fastest_by_concurrency(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each method's fastest K at each concurrency, with adaptive depth as a method, without held variants."""
    series: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row["depth"] == "adaptive" or isinstance(row["depth"], int):
            fastest = series.setdefault(ADAPTIVE if row["depth"] == "adaptive" else row["method"], {})
            known = fastest.setdefault(row["concurrency"], row)
            if _speed(row) > _speed(known):
                fastest[row["concurrency"]] = row
    return {name: [fastest[level] for level in sorted(fastest)] for name, fastest in series.items()}


def acceptance_by_depth(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """Return K and its acceptance length over the drafts of all concurrencies, by method."""
    sums: dict[str, dict[int, tuple[int, int]]] = {}
    for row in rows:
        if row["drafts"] and isinstance(row["depth"], int):
            of_method = sums.setdefault(row["method"], {})
            drafts, accepted = of_method.get(row["depth"], (0, 0))
            of_method[row["depth"]] = drafts + row["drafts"], accepted + sum(row["accepted_by_position"])
    return {
        method: [(depth, 1 + accepted / drafts) for depth, (drafts, accepted) in sorted(of_method.items())]
        for method, of_method in sums.items()
    }


def _speed(row: Row) -> float:
    median: float = row["output_tokens_per_s"]["median"]
    return median


FORM = Form(draw, markdown, result_table, summary)
