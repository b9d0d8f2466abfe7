"""SVG figures that are readable on light and dark pages: no background."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from peagle.bench.core.rows import Row
from peagle.palette import SERIES, SETTINGS

STYLES = {
    "grey": {"color": SERIES["grey"], "marker": "s", "linestyle": ":"},
    "olive": {"color": SERIES["olive"], "marker": "^", "linestyle": "--"},
    "blue": {"color": SERIES["blue"], "marker": "o", "linestyle": "-"},
    "green": {"color": SERIES["green"], "marker": "v", "linestyle": "-"},
    "purple": {"color": SERIES["purple"], "marker": "D", "linestyle": "-."},
}
"""Colour, marker and line of a series, distinguishable without colour."""
_SETTINGS: Any = {**SETTINGS, "font.size": 11}


def lines_by_concurrency(
    series: Mapping[str, Sequence[Row]], figure: str, label: str, styles: Mapping[str, str]
) -> bytes:
    """Draw a line of `figure` per name, with its extremes; `styles` maps names to `STYLES`."""
    with rc_context(_SETTINGS):
        canvas, axes = _new_axes("Requests at once", label)
        for name, rows in series.items():
            spreads = [row[figure] for row in rows]
            medians = [spread["median"] for spread in spreads]
            below = [spread["median"] - spread["low"] for spread in spreads]
            above = [spread["high"] - spread["median"] for spread in spreads]
            style: Any = STYLES[styles[name]]
            axes.errorbar(
                [row["concurrency"] for row in rows], medians, yerr=[below, above], label=name, capsize=3, **style
            )
        axes.set_xscale("log", base=2)
        levels = {row["concurrency"] for rows in series.values() for row in rows}
        axes.xaxis.set_major_locator(FixedLocator(sorted(levels)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
        return _svg(canvas, axes)


def lines_by_depth(points: Mapping[str, Sequence[tuple[int, float]]], label: str, styles: Mapping[str, str]) -> bytes:
    """Draw a line per name through its points, which are K and a value of at least 1."""
    with rc_context(_SETTINGS):
        canvas, axes = _new_axes("K", label)
        for name, line in points.items():
            style: Any = STYLES[styles[name]]
            axes.plot(*zip(*line, strict=True), label=name, **style)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return _svg(canvas, axes, bottom=1.0)


def stacked_bars(names: Sequence[str], parts: Mapping[str, Sequence[float]], label: str) -> bytes:
    """Draw a stacked bar per name."""
    with rc_context(_SETTINGS):
        canvas, axes = _new_axes("", label)
        below = [0.0] * len(names)
        for part, heights in parts.items():
            axes.bar(range(len(names)), heights, bottom=below, label=part)
            below = [low + height for low, height in zip(below, heights, strict=True)]
        axes.set_xticks(range(len(names)), names, fontsize=8, rotation=30, ha="right")
        return _svg(canvas, axes)


def _new_axes(across: str, up: str) -> tuple[Figure, Axes]:
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y")
    return canvas, axes


def _svg(canvas: Figure, axes: Axes, bottom: float = 0.0) -> bytes:
    axes.set_ylim(bottom=bottom)
    axes.legend()
    content = BytesIO()
    canvas.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue()
