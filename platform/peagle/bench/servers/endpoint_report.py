"""A measurement of running servers as Markdown and as a table on the terminal, from `result.json`'s values. Pure."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rich.table import Table

from peagle.bench.core.rows import PERCENTILES, Row
from peagle.bench.engines.speculation_report import (
    acceptance_lines,
    by_concurrency,
    markdown_table,
    median_cell,
    spread_cell,
)


def endpoint_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal of 80 columns; `report.md` has the other figures."""
    caption = "medians over repeats, tokens/s with its extremes; AL: tokens per verification step; TTFT and ITL in ms"
    several = len({row["method"] for row in rows}) > 1

    def cells(row: Row) -> list[str]:
        return [
            f"{row['method']}, {_depth(row)}" if several else _depth(row),
            spread_cell(row["output_tokens_per_s"], "{:.0f}"),
            median_cell(row.get("ratio_to_first"), "{:.2f}"),
            _length(row),
            median_cell(row["ttft_ms_p50"], "{:.0f}"),
            median_cell(row["itl_ms_p50"], "{:.1f}"),
        ]

    return by_concurrency(("endpoint", "tokens/s", "x first", "AL", "TTFT", "ITL"), rows, cells, caption)


def endpoint_markdown(result: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """`report.md`, from the values of `result.json`; `pictures` are files beside it."""
    priced = result["price_per_hour"] is not None
    headings = [*_HEADINGS, *(["cost of 1 M tokens"] if priced else [])]
    lines = [
        f"# {result['model']} as it is served",
        "",
        f"`{result['command']}`",
        "",
        *_circumstances(result),
        "",
        *markdown_table(headings, [_cells(row, priced) for row in result["rows"]]),
        "",
        *chain.from_iterable((f"![{name.partition('.')[0].replace('_', ' ')}]({name})", "") for name in pictures),
        *acceptance_lines(result["rows"]),
    ]
    return "\n".join(lines) + "\n"


def _circumstances(result: Mapping[str, Any]) -> list[str]:
    machine, prompts, price = result["hardware"], result["prompts"], result["price_per_hour"]
    return [
        *(f"- {each['name']}: {each['model']} at {each['url']}." for each in result["endpoints"]),
        f"- The client ran on {machine['processor']}, {machine['cores']} cores, load {machine['load_before']} before "
        f"the start; commit {result['commit'] or 'unknown'}.",
        f"- {prompts['count']} prompts of {prompts['tokens_median']} tokens in the median, {result['output_tokens']} "
        f"output tokens each, streamed, greedy, end of text ignored; {result['repeats']} repeats. "
        f"{prompts['examined']} prompts were looked at, {prompts['too_long']} were too long.",
        "- Every endpoint runs a set of prompts before any runs the next; ratios to the first row pair what the same "
        "repeat measured. No prompt is in a cache. Figures are medians with extremes over repeats.",
        "- ITL is the time between two outputs of one request, and one output may carry several tokens. AL is tokens "
        "per verification step, the bonus token included; it counts what others asked meanwhile, too.",
        *([f"- Cost at {price:g} an hour for an endpoint that is never idle."] if price is not None else []),
    ]


_HEADINGS = (
    "at once", "endpoint", "K", "tokens/s", "x first", "AL",
    *(f"TTFT ms p{each}" for each in PERCENTILES), *(f"ITL ms p{each}" for each in PERCENTILES),
)  # fmt: skip


def _cells(row: Row, priced: bool) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        row["depth"],
        spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        spread_cell(row.get("ratio_to_first"), "{:.2f}"),
        _length(row),
        *(median_cell(row[f"{kind}_ms_p{each}"], "{:.1f}") for kind in ("ttft", "itl") for each in PERCENTILES),
        *([median_cell(row["cost_per_million_tokens"], "{:.3g}")] if priced else []),
    ]


def _depth(row: Row) -> str:
    return f"K={row['depth']}" if row["depth"].isdecimal() else str(row["depth"])


def _length(row: Row) -> str:
    return "" if row["acceptance_length"] is None else f"{row['acceptance_length']:.2f}"
