"""A comparison of servers as Markdown, a table, lines and pictures, from the values of `result.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from peagle.bench.core import report_parts as parts
from peagle.bench.core.output import Form
from peagle.bench.core.rows import Row
from peagle.bench.servers.compared_servers import PEAGLE, UNMETERED, VLLM
from peagle.bench.servers.overhead import SCRAPE_EVERY_S

STYLES = {VLLM: "grey", PEAGLE: "blue", UNMETERED: "purple"}
ROLES_MAX = 6
"""Roles that have a colour of their own in the picture of CPU; all others are one."""
BUSY_LOAD_RATIO = 0.25
"""Load for each core, before the start, above which others decide what is measured."""

_PROMISES = {
    "throughput_ratio": ("{} of vllm's output tokens/s", "{:.3f}"),
    "ttft_added_ms": ("{} ms added to the median TTFT", "{:.1f}"),
    "itl_added_ms": ("{} ms added to the median ITL", "{:.2f}"),
    "metrics_ratio": (f"{{}} of {UNMETERED}'s output tokens/s with metrics", "{:.3f}"),
}
"""What each promise is about, and how its figures are written."""


def overhead_table(rows: Sequence[Row]) -> Table:
    """The rows for a terminal of 80 columns; `report.md` has the other figures."""
    caption = "medians over repeats, tokens/s with its extremes; TTFT and ITL in ms, CPU in s for 1,000 tokens"

    def cells(row: Row) -> list[str]:
        return [
            row["method"],
            parts.spread_cell(row["output_tokens_per_s"], "{:.0f}"),
            parts.median_cell(row.get("ratio_to_vllm"), "{:.2f}"),
            parts.median_cell(row["ttft_ms_p50"], "{:.1f}"),
            parts.median_cell(row["itl_ms_p50"], "{:.1f}"),
            parts.median_cell(row["cpu_s_per_1000_tokens"], "{:.2f}"),
        ]

    return parts.by_concurrency(("side", "tokens/s", f"x {VLLM}", "TTFT", "ITL", "CPU"), rows, cells, caption)


def busy_line(hardware: Mapping[str, Any]) -> str | None:
    """What a reader has to know of a machine that had other work; None of one that had none."""
    load, cores = hardware["load_before"], hardware["cores"]
    if load <= BUSY_LOAD_RATIO * cores:
        return None
    return (
        f"The machine was busy (load {load} on {cores} cores): how its scheduler shares cores out between processes, "
        "of which the platform has more, weighs as much as what a side needs of them. Measure on an idle one."
    )


def verdict_line(row: Row) -> str:
    """One row of `verdict_rows` in words."""
    words, form = _PROMISES[row["promise"]]
    bound = f"at least {row['least']:g}" if row["most"] is None else f"at most {row['most']:g}"
    return (
        f"{row['concurrency']} at once: {words.format(parts.spread_cell(row['found'], form))}; promised {bound}: "
        f"{'kept' if row['kept'] else 'not kept'}"
    )


def overhead_markdown(result: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """`report.md`, from the values of `result.json`; `pictures` are files beside it."""
    lines = [
        f"# What the platform costs on {result['model']}",
        "",
        f"`{result['command']}`",
        "",
        *_circumstances(result),
        "",
        "What is promised, by the median over repeats:",
        "",
        *(f"- {verdict_line(row)}" for row in result["verdicts"]),
        "",
        *([busy, ""] if (busy := busy_line(result["hardware"])) else []),
        *parts.markdown_table(_HEADINGS, [_cells(row) for row in result["rows"]]),
        "",
        *parts.picture_lines(pictures),
        "CPU seconds for 1,000 output tokens, by process (medians over repeats; a process that only waits costs "
        "something too, and more for a token where there are fewer of them a second):",
        "",
    ]
    for level in dict.fromkeys(row["concurrency"] for row in result["rows"]):
        lines += [*_cpu_table(level, [row for row in result["rows"] if row["concurrency"] == level]), ""]
    return "\n".join(lines)


def _circumstances(result: Mapping[str, Any]) -> list[str]:
    return [
        *parts.machine_lines(result, "servers"),
        f"{parts.prompts_line(result)}.",
        f"- Sides: `{VLLM}` is vLLM's own OpenAI server, `peagle` is `peagle serve`, `{UNMETERED}` the same "
        "server while it counts nothing and nobody reads its metrics. All have the same engine arguments, "
        f"K = {result['depth']}, and one replica, whose engine computes on the same cores.",
        "- Every side runs a set of prompts before any runs the next; ratios and what is added pair what the same "
        "repeat measured. No prompt is in a cache. Figures are medians with extremes over repeats.",
        "- ITL is the time between two outputs of one request, and one output may carry several tokens.",
        "- The client streams completions from this machine, and its own CPU time is taken from all sides alike. "
        f"Where there are metrics it reads `/metrics` every {SCRAPE_EVERY_S:g} s, as Prometheus does.",
        *parts.sittings_lines(result, "servers"),
    ]


_HEADINGS = (
    "at once", "side", "tokens/s", f"x {VLLM}", *parts.percentile_headings("TTFT"), "added",
    *parts.percentile_headings("ITL"), "added", "CPU s for 1,000 tokens", f"= {VLLM}",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    return [
        str(row["concurrency"]),
        row["method"],
        parts.spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        parts.spread_cell(row.get("ratio_to_vllm"), "{:.3f}"),
        *parts.percentile_cells(row, "TTFT"),
        parts.spread_cell(row.get("ttft_added_ms"), "{:.1f}"),
        *parts.percentile_cells(row, "ITL", "{:.2f}"),
        parts.spread_cell(row.get("itl_added_ms"), "{:.2f}"),
        parts.spread_cell(row["cpu_s_per_1000_tokens"], "{:.2f}"),
        parts.number_cell(row.get("outputs_equal_to_vllm_ratio"), "{:.0%}"),
    ]


def _cpu_table(level: int, rows: Sequence[Row]) -> list[str]:
    """A line for each role, a column for each side."""
    shares = [row["cpu_s_per_1000_tokens_by_process"] for row in rows]
    roles = sorted(
        {role for share in shares for role in share}, key=lambda role: -max(s.get(role, 0.0) for s in shares)
    )
    cells = [[str(level), role, *(f"{share[role]:.3f}" if role in share else "" for share in shares)] for role in roles]
    cells.append([str(level), "the client", *(f"{row['client_cpu_s_per_1000_tokens']:.3f}" for row in rows)])
    return parts.markdown_table(["at once", "process", *(row["method"] for row in rows)], cells)


def summary(result: Mapping[str, Any]) -> list[str]:
    """What is said below the table."""
    return [*map(verdict_line, result["verdicts"]), *filter(None, [busy_line(result["hardware"])])]


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """Throughput, and where the CPU's time goes."""
    from peagle.bench.core.plots import lines_by_concurrency, stacked_bars  # optional: it needs matplotlib

    rows = result["rows"]
    series = {name: [row for row in rows if row["method"] == name] for name in result["sides"]}
    names = [f"{row['method']}\n{row['concurrency']} at once" for row in rows]
    return {
        "throughput.svg": lines_by_concurrency(series, "output_tokens_per_s", "Output tokens/s", STYLES),
        "cpu.svg": stacked_bars(names, _cpu_parts(rows), "CPU seconds\nfor 1,000 output tokens"),
    }


def _cpu_parts(rows: Sequence[Row]) -> dict[str, list[float]]:
    """What each role uses, most first, by row."""
    shares = [row["cpu_s_per_1000_tokens_by_process"] for row in rows]
    total: dict[str, float] = {}
    for share in shares:
        for role, seconds in share.items():
            total[role] = total.get(role, 0.0) + seconds
    ranked = sorted(total, key=lambda role: -total[role])
    parts = {**{role: [role] for role in ranked[:ROLES_MAX]}, "the rest": ranked[ROLES_MAX:]}
    return {name: [sum(share.get(role, 0.0) for role in roles) for share in shares] for name, roles in parts.items()}


FORM = Form(draw, overhead_markdown, overhead_table, summary)
