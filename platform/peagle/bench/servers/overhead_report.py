"""Results of a comparison of servers as rows and promises of `result.json`, Markdown, table, lines and pictures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.table import Table

from peagle.bench.core import report_parts as parts
from peagle.bench.core.closed_loop import Arrivals
from peagle.bench.core.output import Form
from peagle.bench.core.records import Runs
from peagle.bench.core.rows import Cell, Row, client_figures, equal_share, first_s, gaps_s, percentile_ms, speed_ratio
from peagle.bench.core.statistics import Spread
from peagle.bench.servers.compared_servers import PEAGLE, UNMETERED, VLLM, Side
from peagle.bench.servers.completions import Reply
from peagle.bench.servers.overhead import SCRAPE_EVERY_S
from peagle.bench.servers.served import CLIENT

THROUGHPUT_RATIO_MIN = 0.95
"""Minimum ratio of the platform's output tokens/s to those of `vllm serve`."""
TTFT_ADDED_MS_MAX = 5.0
"""Most milliseconds that the platform adds to `vllm serve`'s median TTFT."""
ITL_ADDED_MS_MAX = 1.0
"""Most milliseconds that the platform adds to `vllm serve`'s median ITL."""
METRICS_RATIO_MIN = 0.99
"""Minimum ratio of output tokens/s with metrics to those without: metrics cost at most 1 %."""

STYLES = {VLLM: "grey", PEAGLE: "blue", UNMETERED: "purple"}
ROLES_MAX = 6
"""Roles with their own colour in the CPU picture; all others share one."""
BUSY_LOAD_RATIO = 0.25
"""Load per core before the start above which other processes distort the measurement."""

_PROMISES = {
    "throughput_ratio": ("{} of vllm's output tokens/s", "{:.3f}"),
    "ttft_added_ms": ("{} ms added to the median TTFT", "{:.1f}"),
    "itl_added_ms": ("{} ms added to the median ITL", "{:.2f}"),
    "metrics_ratio": (f"{{}} of {UNMETERED}'s output tokens/s with metrics", "{:.3f}"),
}
"""Description of each promise, and the format of its figures."""


def overhead_rows(runs: Runs[Side, Reply], depth: int) -> list[Row]:
    """Return one row per side and concurrency, in the order measured; `depth` is K on all sides.

    Comparisons with `vllm` are made within each repeat and then summarised: the ratio of output tokens/s, and the time
    added to the medians of TTFT and ITL. They are absent if that side was not measured.
    """
    rows = []
    for (side, level), cell in runs.items():
        row = _figures(side.name, depth, level, cell)
        if (rival := runs.get((Side(VLLM), level))) is not None and side.name != VLLM:
            row |= {
                "ratio_to_vllm": speed_ratio(cell, rival),
                "ttft_added_ms": _added(cell, rival, first_s),
                "itl_added_ms": _added(cell, rival, gaps_s),
                "outputs_equal_to_vllm_ratio": equal_share(_texts(cell), _texts(rival)),
            }
        rows.append(row)
    return rows


def verdict_rows(runs: Runs[Side, Reply]) -> list[Row]:
    """Return each measured promise per concurrency: figure, bound, and whether the median keeps it."""
    rows: list[Row] = []
    for level in dict.fromkeys(level for _, level in runs):
        ours, plain, unmetered = (runs.get((Side(name), level)) for name in (PEAGLE, VLLM, UNMETERED))
        if ours and plain:
            rows += [
                _verdict(level, "throughput_ratio", speed_ratio(ours, plain), least=THROUGHPUT_RATIO_MIN),
                _verdict(level, "ttft_added_ms", _added(ours, plain, first_s), most=TTFT_ADDED_MS_MAX),
                _verdict(level, "itl_added_ms", _added(ours, plain, gaps_s), most=ITL_ADDED_MS_MAX),
            ]
        if ours and unmetered:
            rows.append(_verdict(level, "metrics_ratio", speed_ratio(ours, unmetered), least=METRICS_RATIO_MIN))
    return rows


def _verdict(level: int, promise: str, found: Row, least: float | None = None, most: float | None = None) -> Row:
    kept = (least is None or found["median"] >= least) and (most is None or found["median"] <= most)
    return {"concurrency": level, "promise": promise, "found": found, "least": least, "most": most, "kept": kept}


def _figures(side: str, depth: int, level: int, cell: Cell) -> Row:
    shares = [{role: 1000 * seconds / run.output_tokens for role, seconds in run.cpu_s.items()} for run in cell]
    roles = {role: median(each.get(role, 0.0) for each in shares) for share in shares for role in share}
    servers = [sum(share[role] for role in share if role != CLIENT) for share in shares]
    return {
        "method": side,
        "depth": depth,
        "concurrency": level,
        **client_figures(cell),
        "cpu_s_per_1000_tokens": asdict(Spread.of(servers)),
        "client_cpu_s_per_1000_tokens": roles.pop(CLIENT, 0.0),
        "cpu_s_per_1000_tokens_by_process": dict(sorted(roles.items(), key=lambda each: -each[1])),
    }


def _added(cell: Cell, rival: Cell, pick: Callable[[Arrivals], list[float]]) -> Row:
    """Return the difference of the medians within each repeat, in milliseconds."""
    pairs = zip(cell, rival, strict=True)
    return asdict(
        Spread.of([percentile_ms(one.traces, 50, pick) - percentile_ms(other.traces, 50, pick) for one, other in pairs])
    )


def _texts(cell: Cell) -> list[str]:
    """Return the answers of the first repeat."""
    return [reply.text for reply in cell[0].traces]


def overhead_table(rows: Sequence[Row]) -> Table:
    """Return a table for a terminal of 80 columns; `report.md` has the other figures."""
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
    """Return a warning about a machine with other load; None for an idle machine."""
    load, cores = hardware["load_before"], hardware["cores"]
    if load <= BUSY_LOAD_RATIO * cores:
        return None
    return (
        f"The machine was busy (load {load} on {cores} cores): CPU scheduling between processes, of which the platform "
        "has more, affects the result as much as the servers themselves. Measure on an idle machine."
    )


def verdict_line(row: Row) -> str:
    """Describe one row of `verdict_rows`."""
    words, form = _PROMISES[row["promise"]]
    bound = f"at least {row['least']:g}" if row["most"] is None else f"at most {row['most']:g}"
    return (
        f"{row['concurrency']} at once: {words.format(parts.spread_cell(row['found'], form))}; promised {bound}: "
        f"{'kept' if row['kept'] else 'not kept'}"
    )


def overhead_markdown(result: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """Return `report.md` from the values of `result.json`; `pictures` are files next to it."""
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
        "server with counting paused and no scrapes. All have the same engine arguments, "
        f"K = {result['depth']}, and one replica, whose engine computes on the same cores.",
        "- Every side runs a set of prompts before any runs the next; ratios and added times pair values of the same "
        "repeat. No prompt is in a cache. Figures are medians with extremes over repeats.",
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
    """Return a table with a line per role and a column per side."""
    shares = [row["cpu_s_per_1000_tokens_by_process"] for row in rows]
    roles = sorted(
        {role for share in shares for role in share}, key=lambda role: -max(s.get(role, 0.0) for s in shares)
    )
    cells = [[str(level), role, *(f"{share[role]:.3f}" if role in share else "" for share in shares)] for role in roles]
    cells.append([str(level), "the client", *(f"{row['client_cpu_s_per_1000_tokens']:.3f}" for row in rows)])
    return parts.markdown_table(["at once", "process", *(row["method"] for row in rows)], cells)


def summary(result: Mapping[str, Any]) -> list[str]:
    """Return the lines below the table."""
    return [*map(verdict_line, result["verdicts"]), *filter(None, [busy_line(result["hardware"])])]


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw throughput, and CPU time by role."""
    from peagle.bench.core.plots import lines_by_concurrency, stacked_bars  # optional: it needs matplotlib

    rows = result["rows"]
    series = {name: [row for row in rows if row["method"] == name] for name in result["sides"]}
    names = [f"{row['method']}\n{row['concurrency']} at once" for row in rows]
    return {
        "throughput.svg": lines_by_concurrency(series, "output_tokens_per_s", "Output tokens/s", STYLES),
        "cpu.svg": stacked_bars(names, _cpu_parts(rows), "CPU seconds\nfor 1,000 output tokens"),
    }


def _cpu_parts(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return each role's CPU use by row, largest first."""
    shares = [row["cpu_s_per_1000_tokens_by_process"] for row in rows]
    total: dict[str, float] = {}
    for share in shares:
        for role, seconds in share.items():
            total[role] = total.get(role, 0.0) + seconds
    ranked = sorted(total, key=lambda role: -total[role])
    parts = {**{role: [role] for role in ranked[:ROLES_MAX]}, "the rest": ranked[ROLES_MAX:]}
    return {name: [sum(share.get(role, 0.0) for role in roles) for share in shares] for name, roles in parts.items()}


FORM = Form(draw, overhead_markdown, overhead_table, summary)
