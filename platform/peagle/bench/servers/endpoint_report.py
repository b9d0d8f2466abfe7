"""Results of running servers as rows of `result.json`, and as Markdown, a table and pictures."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from rich.table import Table

from peagle.bench.core import report_parts as parts
from peagle.bench.core.output import Form
from peagle.bench.core.records import Runs
from peagle.bench.core.rows import Row, client_figures, cost_figures, draft_figures, speed_ratio
from peagle.bench.servers.completions import Reply
from peagle.bench.servers.endpoints import EndpointVariant


def endpoint_rows(runs: Runs[EndpointVariant, Reply], price_per_hour: float | None = None) -> list[Row]:
    """Return one row per variant and concurrency, in the order measured.

    `ratio_to_first` is the ratio of output tokens/s to the first variant at the same concurrency, within each repeat.
    With the hourly price of a whole endpoint, rows have `cost_per_million_tokens` of output, in its currency.
    """
    first, _ = next(iter(runs))
    rows = []
    for (variant, level), cell in runs.items():
        row = {
            "method": variant.endpoint.name,
            "depth": variant.depth_name,
            "concurrency": level,
            **client_figures(cell),
            **draft_figures(cell),
            **cost_figures(cell, price_per_hour),
        }
        if variant != first:
            row["ratio_to_first"] = speed_ratio(cell, runs[first, level])
        rows.append(row)
    return rows


def endpoint_table(rows: Sequence[Row]) -> Table:
    """Return a table for a terminal of 80 columns; `report.md` has the other figures."""
    caption = "medians over repeats, tokens/s with its extremes; AL: tokens per verification step; TTFT and ITL in ms"
    several = len({row["method"] for row in rows}) > 1

    def cells(row: Row) -> list[str]:
        return [
            f"{row['method']}, {_depth(row)}" if several else _depth(row),
            parts.spread_cell(row["output_tokens_per_s"], "{:.0f}"),
            parts.median_cell(row.get("ratio_to_first"), "{:.2f}"),
            parts.number_cell(row["acceptance_length"], "{:.2f}"),
            parts.median_cell(row["ttft_ms_p50"], "{:.0f}"),
            parts.median_cell(row["itl_ms_p50"], "{:.1f}"),
        ]

    return parts.by_concurrency(("endpoint", "tokens/s", "x first", "AL", "TTFT", "ITL"), rows, cells, caption)


def endpoint_markdown(result: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """Return `report.md` from the values of `result.json`; `pictures` are files next to it."""
    rows = result["rows"]
    lines = [
        f"# {result['model']} as it is served",
        "",
        f"`{result['command']}`",
        "",
        *_circumstances(result),
        "",
        *parts.markdown_table([*_HEADINGS, *parts.cost_headings(rows)], [_cells(row) for row in rows]),
        "",
        *parts.picture_lines(pictures),
        *parts.acceptance_lines(rows),
    ]
    return "\n".join(lines) + "\n"


def _circumstances(result: Mapping[str, Any]) -> list[str]:
    machine, price = result["hardware"], result["price_per_hour"]
    return [
        *(f"- {each['name']}: {each['model']} at {each['url']}." for each in result["endpoints"]),
        f"- The client ran on {machine['processor']}, {machine['cores']} cores, load {machine['load_before']} before "
        f"the start; commit {result['commit'] or 'unknown'}.",
        f"{parts.prompts_line(result, 'streamed, greedy')}.",
        "- Every endpoint runs a set of prompts before any runs the next; ratios to the first row pair what the same "
        "repeat measured. No prompt is in a cache. Figures are medians with extremes over repeats.",
        "- ITL is the time between two outputs of one request, and one output may carry several tokens. AL is tokens "
        "per verification step, including the bonus token; it also counts other clients' requests.",
        *([f"- Cost at {price:g} an hour for an endpoint that is never idle."] if price is not None else []),
    ]


_HEADINGS = (
    "at once", "endpoint", "K", "tokens/s", "x first", "AL",
    *parts.percentile_headings("TTFT"), *parts.percentile_headings("ITL"),
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        row["depth"],
        parts.spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        parts.spread_cell(row.get("ratio_to_first"), "{:.2f}"),
        parts.number_cell(row["acceptance_length"], "{:.2f}"),
        *parts.percentile_cells(row, "TTFT"),
        *parts.percentile_cells(row, "ITL"),
        *parts.cost_cells(row),
    ]


def _depth(row: Row) -> str:
    return f"K={row['depth']}" if row["depth"].isdecimal() else str(row["depth"])


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw throughput, and its cost if a price is known."""
    from peagle.bench.core.plots import STYLES, lines_by_concurrency  # optional: it needs matplotlib

    series: dict[str, list[Row]] = {}
    for row in result["rows"]:
        series.setdefault(f"{row['method']}, K {row['depth']}", []).append(row)
    styles = dict(zip(series, cycle(STYLES), strict=False))
    drawn = {"throughput.svg": lines_by_concurrency(series, "output_tokens_per_s", "Output tokens/s", styles)}
    if result["price_per_hour"] is not None:
        label = "Cost of a million output tokens"
        drawn["cost.svg"] = lines_by_concurrency(series, "cost_per_million_tokens", label, styles)
    return drawn


FORM = Form(draw, endpoint_markdown, endpoint_table)
