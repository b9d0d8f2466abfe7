"""Pictures of a measurement of running servers: output tokens/s, and their cost where a price is known."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib import rc_context

from peagle.bench.core.plots import SETTINGS, STYLES, add_series, new_axes, svg
from peagle.bench.core.rows import Row


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """By file name."""
    pictures = {"throughput.svg": _lines(result["rows"], "output_tokens_per_s", "Output tokens/s")}
    if result["price_per_hour"] is not None:
        label = "Cost of a million output tokens"
        pictures["cost.svg"] = _lines(result["rows"], "cost_per_million_tokens", label)
    return pictures


def _lines(rows: list[Row], figure: str, label: str) -> bytes:
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(f"{row['method']}, K {row['depth']}", []).append(row)
    styles = dict(zip(series, cycle(STYLES.values()), strict=False))
    with rc_context(SETTINGS):
        canvas, axes = new_axes("Requests at once", label)
        add_series(axes, series, figure, styles)
        return svg(canvas, axes)
