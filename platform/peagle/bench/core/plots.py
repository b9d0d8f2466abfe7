"""A result as SVG pictures that can be read on a light and on a dark page: no background, colours between the two."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from peagle.bench.core.rows import Row
from peagle.bench.engines.engine_plan import EAGLE3, FIXED, NONE, PEAGLE

INK = "#7a7f87"
STYLES = {
    NONE: ("#808080", "s", ":"),
    EAGLE3: ("#c56a15", "^", "--"),
    PEAGLE: ("#3b82d6", "o", "-"),
    FIXED: ("#2f9e6e", "v", "-"),
    f"{PEAGLE}, adaptive": ("#a45fd0", "D", "-."),
}
"""Colour, marker and line of each method: told apart without colour too."""
SETTINGS: Any = {
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    # Without these, the same result would make another file each time.
    "svg.hashsalt": "peagle",
}


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """By file name: throughput, acceptance length where drafts were made, and cost where a price is known."""
    rows = result["rows"]
    pictures = {"throughput.svg": _by_concurrency(rows, "output_tokens_per_s", "Output tokens/s")}
    if any(row["drafts"] and isinstance(row["depth"], int) for row in rows):
        pictures["acceptance_length.svg"] = _acceptance_length(rows)
    if result["price_per_hour"] is not None:
        label = "Cost of a million output tokens"
        pictures["cost.svg"] = _by_concurrency(rows, "cost_per_million_tokens", label)
    return pictures


def series_by_concurrency(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Each method's fastest K at each concurrency, adaptive depth as a method of its own; a held one is none."""
    fastest: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row["depth"] != "adaptive" and not isinstance(row["depth"], int):
            continue
        name = f"{row['method']}, adaptive" if row["depth"] == "adaptive" else row["method"]
        place = name, row["concurrency"]
        if place not in fastest or _speed(row) > _speed(fastest[place]):
            fastest[place] = row
    names = dict.fromkeys(name for name, _ in fastest)
    return {name: sorted((fastest[at] for at in fastest if at[0] == name), key=_level) for name in names}


def acceptance_by_depth(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """For each method, K and its acceptance length over the drafts of all concurrencies."""
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        if row["drafts"] and isinstance(row["depth"], int):
            place = row["method"], row["depth"]
            drafts, accepted = sums.get(place, (0, 0))
            sums[place] = drafts + row["drafts"], accepted + sum(row["accepted_by_position"])
    methods = dict.fromkeys(method for method, _ in sums)
    return {
        method: sorted(
            (depth, 1 + sums[name, depth][1] / sums[name, depth][0]) for name, depth in sums if name == method
        )
        for method in methods
    }


def _by_concurrency(rows: Sequence[Row], figure: str, label: str) -> bytes:
    with rc_context(SETTINGS):
        canvas, axes = new_axes("Requests at once", f"{label}\n(each method at its fastest K)")
        add_series(axes, series_by_concurrency(rows), figure, STYLES)
        return svg(canvas, axes)


def add_series(
    axes: Axes, series: Mapping[str, Sequence[Row]], figure: str, styles: Mapping[str, tuple[str, str, str]]
) -> None:
    """Draw a line of each name's `figure` by concurrency, with its extremes; `styles` are as `STYLES`."""
    for name, rows in series.items():
        spreads = [row[figure] for row in rows]
        medians = [spread["median"] for spread in spreads]
        below = [spread["median"] - spread["low"] for spread in spreads]
        above = [spread["high"] - spread["median"] for spread in spreads]
        levels = [row["concurrency"] for row in rows]
        color, marker, line = styles[name]
        style: Any = {"color": color, "marker": marker, "linestyle": line}
        axes.errorbar(levels, medians, yerr=[below, above], label=name, capsize=3, **style)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted({row["concurrency"] for rows in series.values() for row in rows})))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))


def _acceptance_length(rows: Sequence[Row]) -> bytes:
    with rc_context(SETTINGS):
        canvas, axes = new_axes("K", "Acceptance length\n(tokens a step, all concurrencies)")
        for method, points in acceptance_by_depth(rows).items():
            color, marker, line = STYLES[method]
            depths, lengths = zip(*points, strict=True)
            axes.plot(depths, lengths, label=method, color=color, marker=marker, linestyle=line)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return svg(canvas, axes, bottom=1.0)


def new_axes(across: str, up: str) -> tuple[Figure, Axes]:
    canvas = Figure(figsize=(7, 4), layout="constrained")
    axes = canvas.subplots()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(axis="y")
    return canvas, axes


def svg(canvas: Figure, axes: Axes, bottom: float = 0.0) -> bytes:
    axes.set_ylim(bottom=bottom)
    axes.legend(frameon=False)
    content = BytesIO()
    canvas.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    return content.getvalue()


def _speed(row: Row) -> float:
    median: float = row["output_tokens_per_s"]["median"]
    return median


def _level(row: Row) -> int:
    level: int = row["concurrency"]
    return level
