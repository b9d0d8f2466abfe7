"""Common parts of reports, from the values of `result.json`: cells, tables, and Markdown lines. Pure."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from rich import box
from rich.table import Table

from peagle.bench.core.rows import PERCENTILES, Row


def spread_cell(spread: Mapping[str, Any] | None, form: str) -> str:
    """Format a median and its extremes; empty if nothing was measured."""
    if spread is None:
        return ""
    return f"{form.format(spread['median'])} ({form.format(spread['low'])} to {form.format(spread['high'])})"


def median_cell(spread: Mapping[str, Any] | None, form: str) -> str:
    """Format a median."""
    return "" if spread is None or spread["median"] is None else form.format(spread["median"])


def number_cell(value: float | None, form: str) -> str:
    """Format one number; empty if there is none."""
    return "" if value is None else form.format(value)


def percentile_headings(kind: str) -> list[str]:
    """Return the headings for `percentile_cells`; `kind` is TTFT or ITL."""
    return [f"{kind} ms p{each}" for each in PERCENTILES]


def percentile_cells(row: Row, kind: str, form: str = "{:.1f}") -> list[str]:
    return [median_cell(row[f"{kind.lower()}_ms_p{each}"], form) for each in PERCENTILES]


def by_concurrency(
    headings: Sequence[str], rows: Sequence[Row], cells: Callable[[Row], Sequence[str]], caption: str
) -> Table:
    """Return a terminal table with a section per concurrency; a row's `cells` go below `headings`, a name first.

    If it is too wide, the names are truncated.
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


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table whose first two columns hold text."""
    rule = "| --- | --- |" + " ---: |" * (len(headings) - 2)
    return [f"| {' | '.join(headings)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def cost_headings(rows: Sequence[Row]) -> list[str]:
    """Return the heading for `cost_cells`; empty without a price."""
    return ["cost of 1 M tokens"] if "cost_per_million_tokens" in rows[0] else []


def cost_cells(row: Row) -> list[str]:
    return [median_cell(row["cost_per_million_tokens"], "{:.3g}")] if "cost_per_million_tokens" in row else []


def machine_lines(result: Mapping[str, Any], subjects: str) -> list[str]:
    """Return lines about the machine and the versions; `subjects` were idle on it before the first pass."""
    machine = result["hardware"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    return [
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{gpus}; "
        f"load {machine['load_before']} before the start, {result['idle_cores']:.2f} cores busy with all {subjects} "
        "idle.",
        f"- Versions: {versions}; commit {result['commit'] or 'unknown'}.",
    ]


def prompts_line(result: Mapping[str, Any], answers: str = "greedy") -> str:
    """Return a line about the prompts and the answers."""
    prompts, mode = result["prompts"], ""
    if "eager" in result:
        mode = "; eager" if result["eager"] else "; compiled"
    return (
        f"- {prompts['count']} prompts of {prompts['tokens_median']} tokens in the median, {result['output_tokens']} "
        f"output tokens each, {answers}, end of text ignored; {result['repeats']} repeats{mode}. "
        f"{prompts['examined']} prompts were examined, {prompts['too_long']} were too long"
    )


def sittings_lines(result: Mapping[str, Any], subjects: str) -> list[str]:
    """Return a line with the number of starts of the `subjects`, if there was more than one."""
    if result["sittings"] == 1:
        return []
    return [f"- The {subjects} were started {result['sittings']} times; equal ones differ between starts."]


def picture_lines(pictures: Sequence[str]) -> list[str]:
    """Return lines that show the pictures next to the report."""
    return [*chain.from_iterable((f"![{name.partition('.')[0].replace('_', ' ')}]({name})", "") for name in pictures)]


def acceptance_lines(rows: Sequence[Row]) -> list[str]:
    """Return lines with the acceptance by position of every row that has it."""
    lines = [
        f"- {row['method']} K={row['depth']}, {row['concurrency']} at once: "
        + " ".join(f"{value:.3f}" for value in row["acceptance_by_position"])
        for row in rows
        if row["acceptance_by_position"]
    ]
    return ["Probability that the first j drafts are all accepted:", "", *lines]
