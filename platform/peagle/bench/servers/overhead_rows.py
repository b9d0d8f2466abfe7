"""What the runs of servers came to, as the plain values of `result.json`, and what was promised of them. Pure."""

from collections.abc import Callable
from dataclasses import asdict
from statistics import median

from peagle.bench.core.closed_loop import Arrivals
from peagle.bench.core.records import Runs
from peagle.bench.core.rows import Cell, Row, client_figures, equal_share, first_s, gaps_s, percentile_ms, speed_ratio
from peagle.bench.core.statistics import Spread
from peagle.bench.servers.compared_servers import PEAGLE, UNMETERED, VLLM, Side
from peagle.bench.servers.completions import Reply
from peagle.bench.servers.served import CLIENT

THROUGHPUT_RATIO_MIN = 0.95
"""Of `vllm serve`'s output tokens/s, the part that the platform keeps at least."""
TTFT_ADDED_MS_MAX = 5.0
"""The most that the platform adds to `vllm serve`'s median TTFT."""
ITL_ADDED_MS_MAX = 1.0
"""The most that the platform adds to `vllm serve`'s median ITL."""
METRICS_RATIO_MIN = 0.99
"""Of the output tokens/s without metrics, the part that the platform keeps with them: they cost 1 % at most."""

Pick = Callable[[Arrivals], list[float]]


def overhead_rows(runs: Runs[Side, Reply], depth: int) -> list[Row]:
    """One row for each side and concurrency, in the order measured; `depth` is K on all sides.

    What is held against `vllm` is taken within each repeat and then summarised: the ratio of output tokens/s, and what
    is added to the medians of TTFT and ITL. Absent if that side was not measured.
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
    """At each concurrency, each promise whose sides were measured: figure, bound, and whether the median keeps it."""
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


def _added(cell: Cell, rival: Cell, pick: Pick) -> Row:
    """Milliseconds between the medians of one repeat."""
    pairs = zip(cell, rival, strict=True)
    return asdict(
        Spread.of([percentile_ms(one.traces, 50, pick) - percentile_ms(other.traces, 50, pick) for one, other in pairs])
    )


def _texts(cell: Cell) -> list[str]:
    """The answers of its first repeat."""
    return [reply.text for reply in cell[0].traces]
