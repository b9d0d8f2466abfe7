"""What the runs of running servers came to, as the plain values of `result.json`. Pure."""

from collections.abc import Mapping, Sequence

from peagle.bench.core.rows import Row, client_figures, cost_figures, draft_figures, speed_ratio
from peagle.bench.core.statistics import NO_DRAFTS
from peagle.bench.servers.endpoints import EndpointVariant
from peagle.bench.servers.served import Cell, Run


def endpoint_rows(
    variants: Sequence[EndpointVariant], runs: Mapping[Cell, Sequence[Run]], price_per_hour: float | None = None
) -> list[Row]:
    """One row for each variant and concurrency, in the order measured.

    `ratio_to_first` holds output tokens/s against those of the first variant at the same concurrency, within each
    repeat. With the price of a whole endpoint for an hour, also `cost_per_million_tokens` of output, in its currency.
    """
    named, first = {each.name: each for each in variants}, variants[0].name
    rows = []
    for (name, level), cell in runs.items():
        variant = named[name]
        row = {
            "method": variant.endpoint.name,
            "depth": variant.depth_name,
            "concurrency": level,
            **client_figures(cell),
            **draft_figures(sum((run.counts for run in cell), NO_DRAFTS)),
            **cost_figures(cell, price_per_hour),
        }
        if name != first:
            row["ratio_to_first"] = speed_ratio(cell, runs[first, level])
        rows.append(row)
    return rows
