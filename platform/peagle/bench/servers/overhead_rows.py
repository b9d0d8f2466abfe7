"""What the runs of servers came to, as the plain values of `result.json`, and what was promised of them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from peagle.bench.core.closed_loop import Arrivals
from peagle.bench.core.rows import Row, client_figures, first_s, gaps_s, percentile_ms, speed_ratio
from peagle.bench.core.statistics import Spread
from peagle.bench.servers.compared_servers import PEAGLE, UNMETERED, VLLM
from peagle.bench.servers.served import CLIENT, Cell, Run

THROUGHPUT_RATIO_MIN = 0.95
"""Of `vllm serve`'s output tokens/s, the part that the platform keeps at least."""
TTFT_ADDED_MS_MAX = 5.0
"""The most that the platform adds to `vllm serve`'s median TTFT."""
ITL_ADDED_MS_MAX = 1.0
"""The most that the platform adds to `vllm serve`'s median ITL."""
METRICS_RATIO_MIN = 0.99
"""Of the output tokens/s without metrics, the part that the platform keeps with them: they cost 1 % at most."""

Pick = Callable[[Arrivals], list[float]]


def overhead_rows(runs: Mapping[Cell, Sequence[Run]], depth: int) -> list[Row]:
    """One row for each side and concurrency, in the order measured; `depth` is K on all sides.

    What is held against `vllm` is taken within each repeat and then summarised: the ratio of output tokens/s, and what
    is added to the medians of TTFT and ITL. Absent if that side was not measured.
    """
    rows = []
    for (side, level), cell in runs.items():
        row = _figures(side, depth, level, cell)
        if (rival := runs.get((VLLM, level))) is not None and side != VLLM:
            row |= {
                "ratio_to_vllm": speed_ratio(cell, rival),
                "ttft_added_ms": _added(cell, rival, first_s),
                "itl_added_ms": _added(cell, rival, gaps_s),
                "outputs_equal_to_vllm_ratio": _equal_share(cell[0], rival[0]),
            }
        rows.append(row)
    return rows


def verdict_rows(runs: Mapping[Cell, Sequence[Run]]) -> list[Row]:
    """At each concurrency, each promise whose sides were measured: figure, bound, and whether the median keeps it."""
    rows: list[Row] = []
    for level in dict.fromkeys(level for _, level in runs):
        ours, plain, unmetered = (runs.get((side, level)) for side in (PEAGLE, VLLM, UNMETERED))
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


def _figures(side: str, depth: int, level: int, cell: Sequence[Run]) -> Row:
    roles = {role: median(run.cpu_s_per_1000_tokens(role) for run in cell) for run in cell for role in run.cpu_s}
    return {
        "method": side,
        "depth": depth,
        "concurrency": level,
        **client_figures(cell),
        "cpu_s_per_1000_tokens": asdict(Spread.of([run.server_cpu_s_per_1000_tokens for run in cell])),
        "client_cpu_s_per_1000_tokens": roles.pop(CLIENT, 0.0),
        "cpu_s_per_1000_tokens_by_process": dict(sorted(roles.items(), key=lambda each: -each[1])),
    }


def _added(cell: Sequence[Run], rival: Sequence[Run], pick: Pick) -> Row:
    """Milliseconds between the medians of one repeat."""
    pairs = zip(cell, rival, strict=True)
    return asdict(
        Spread.of([percentile_ms(one.traces, 50, pick) - percentile_ms(other.traces, 50, pick) for one, other in pairs])
    )


def _equal_share(run: Run, reference: Run) -> float:
    same = [one.text == other.text for one, other in zip(run.traces, reference.traces, strict=True)]
    return sum(same) / len(same)
