"""A comparison of servers as Markdown and as a table on the terminal, from the values of `result.json`. Pure."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rich.table import Table

from peagle.bench.core.rows import PERCENTILES, Row
from peagle.bench.engines.speculation_report import by_concurrency, markdown_table, median_cell, spread_cell
from peagle.bench.servers.compared_servers import UNMETERED, VLLM
from peagle.bench.servers.overhead import SCRAPE_EVERY_S

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
            spread_cell(row["output_tokens_per_s"], "{:.0f}"),
            median_cell(row.get("ratio_to_vllm"), "{:.2f}"),
            median_cell(row["ttft_ms_p50"], "{:.1f}"),
            median_cell(row["itl_ms_p50"], "{:.1f}"),
            median_cell(row["cpu_s_per_1000_tokens"], "{:.2f}"),
        ]

    return by_concurrency(("side", "tokens/s", f"x {VLLM}", "TTFT", "ITL", "CPU"), rows, cells, caption)


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
        f"{row['concurrency']} at once: {words.format(spread_cell(row['found'], form))}; promised {bound}: "
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
        *markdown_table(_HEADINGS, [_cells(row) for row in result["rows"]]),
        "",
        *chain.from_iterable((f"![{name.partition('.')[0].replace('_', ' ')}]({name})", "") for name in pictures),
        "CPU seconds for 1,000 output tokens, by process (medians over repeats; a process that only waits costs "
        "something too, and more for a token where there are fewer of them a second):",
        "",
    ]
    for level in dict.fromkeys(row["concurrency"] for row in result["rows"]):
        lines += [*_cpu_table(level, [row for row in result["rows"] if row["concurrency"] == level]), ""]
    return "\n".join(lines)


def _circumstances(result: Mapping[str, Any]) -> list[str]:
    machine, prompts = result["hardware"], result["prompts"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    gpus = f", {', '.join(machine['gpus'])}" if machine["gpus"] else ""
    return [
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{gpus}; "
        f"load {machine['load_before']} before the start, {result['idle_cores']:.2f} cores busy with all servers idle.",
        f"- Versions: {versions}; commit {result['commit'] or 'unknown'}.",
        f"- {prompts['count']} prompts of {prompts['tokens_median']} tokens in the median, {result['output_tokens']} "
        f"output tokens each, greedy, end of text ignored; {result['repeats']} repeats; "
        f"{'eager' if result['eager'] else 'compiled'}. {prompts['examined']} prompts were looked at, "
        f"{prompts['too_long']} were too long.",
        f"- Sides: `{VLLM}` is vLLM's own OpenAI server, `peagle` is `peagle serve`, `{UNMETERED}` the same "
        "server while it counts nothing and nobody reads its metrics. All have the same engine arguments, "
        f"K = {result['depth']}, and one replica, whose engine computes on the same cores.",
        "- Every side runs a set of prompts before any runs the next; ratios and what is added pair what the same "
        "repeat measured. No prompt is in a cache. Figures are medians with extremes over repeats.",
        "- ITL is the time between two outputs of one request, and one output may carry several tokens.",
        "- The client streams completions from this machine, and its own CPU time is taken from all sides alike. "
        f"Where there are metrics it reads `/metrics` every {SCRAPE_EVERY_S:g} s, as Prometheus does.",
        *(
            [f"- The servers were started {result['sittings']} times; like ones differ from start to start."]
            if result["sittings"] > 1
            else []
        ),
    ]


_HEADINGS = (
    "at once", "side", "tokens/s", f"x {VLLM}", *(f"TTFT ms p{each}" for each in PERCENTILES), "added",
    *(f"ITL ms p{each}" for each in PERCENTILES), "added", "CPU s for 1,000 tokens", f"= {VLLM}",
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    equal = row.get("outputs_equal_to_vllm_ratio")
    return [
        str(row["concurrency"]),
        row["method"],
        spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        spread_cell(row.get("ratio_to_vllm"), "{:.3f}"),
        *(median_cell(row[f"ttft_ms_p{each}"], "{:.1f}") for each in PERCENTILES),
        spread_cell(row.get("ttft_added_ms"), "{:.1f}"),
        *(median_cell(row[f"itl_ms_p{each}"], "{:.2f}") for each in PERCENTILES),
        spread_cell(row.get("itl_added_ms"), "{:.2f}"),
        spread_cell(row["cpu_s_per_1000_tokens"], "{:.2f}"),
        "" if equal is None else f"{equal:.0%}",
    ]


def _cpu_table(level: int, rows: Sequence[Row]) -> list[str]:
    """A line for each role, a column for each side."""
    shares = [row["cpu_s_per_1000_tokens_by_process"] for row in rows]
    roles = sorted(
        {role for share in shares for role in share}, key=lambda role: -max(s.get(role, 0.0) for s in shares)
    )
    cells = [[str(level), role, *(f"{share[role]:.3f}" if role in share else "" for share in shares)] for role in roles]
    cells.append([str(level), "the client", *(f"{row['client_cpu_s_per_1000_tokens']:.3f}" for row in rows)])
    return markdown_table(["at once", "process", *(row["method"] for row in rows)], cells)
