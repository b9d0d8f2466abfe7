"""Results of runs as the plain values of `result.json`. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from peagle.bench.core.closed_loop import Arrivals
from peagle.bench.core.records import Run
from peagle.bench.core.statistics import NO_DRAFTS, Spread, cost_per_million_tokens, paired_ratio

PERCENTILES = (50, 95, 99)

Row = dict[str, Any]
Cell = Sequence[Run[Any]]
"""One run per repeat."""


def client_figures(cell: Cell) -> Row:
    """Return the client's figures: output tokens/s, and percentiles of TTFT and ITL."""
    return {
        "output_tokens_per_s": asdict(speed(cell)) | {"repeats": [run.output_tokens_per_s for run in cell]},
        **{f"ttft_ms_p{each}": _milliseconds(cell, each, first_s) for each in PERCENTILES},
        **{f"itl_ms_p{each}": _milliseconds(cell, each, gaps_s) for each in PERCENTILES},
    }


def draft_figures(cell: Cell) -> Row:
    """Return the draft figures; without drafts there is no acceptance length."""
    counts = sum((run.counts for run in cell), NO_DRAFTS)
    return {
        "acceptance_length": counts.acceptance_length,
        "acceptance_by_position": list(counts.acceptance_by_position),
        "depth_effective": counts.depth_effective,
        "drafts": counts.drafts,
        "drafted_by_position": list(counts.drafted),
        "accepted_by_position": list(counts.accepted),
    }


def cost_figures(cell: Cell, price_per_hour: float | None) -> Row:
    """Return the cost of a million output tokens if the price is known, else nothing."""
    if price_per_hour is None:
        return {}
    costs = [cost_per_million_tokens(price_per_hour, run.output_tokens_per_s) for run in cell]
    return {"cost_per_million_tokens": asdict(Spread.of(costs))}


def speed(cell: Cell) -> Spread:
    return Spread.of([run.output_tokens_per_s for run in cell])


def speed_ratio(cell: Cell, rival: Cell) -> Row:
    """Return the ratio of two cells' output tokens/s, taken within each repeat and then summarised."""
    return asdict(paired_ratio([run.output_tokens_per_s for run in cell], [run.output_tokens_per_s for run in rival]))


def _milliseconds(cell: Cell, percent: int, pick: Callable[[Arrivals], list[float]]) -> Row | None:
    """Return a percentile in milliseconds; None if no run has such a time: answers in one chunk have no ITL."""
    runs = [run for run in cell if any(map(pick, run.traces))]
    return asdict(Spread.of([percentile_ms(run.traces, percent, pick) for run in runs])) if runs else None


def percentile_ms(traces: Iterable[Arrivals], percent: int, pick: Callable[[Arrivals], list[float]]) -> float:
    """Return the percentile of all times that `pick` takes from these requests."""
    return 1000 * float(np.percentile(list(chain.from_iterable(map(pick, traces))), percent))


def first_s(trace: Arrivals) -> list[float]:
    """Return a request's TTFT, for `percentile_ms`."""
    return [trace.ttft_s]


def gaps_s(trace: Arrivals) -> list[float]:
    """Return a request's ITLs, for `percentile_ms`."""
    return trace.gaps_s


def equal_share(answers: Sequence[Any], references: Sequence[Any]) -> float:
    """Return the share of answers that equal those of a reference."""
    return fmean(one == other for one, other in zip(answers, references, strict=True))
