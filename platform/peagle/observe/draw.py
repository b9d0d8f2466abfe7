"""Draws a dashboard panel from Prometheus' answers and the panel's Grafana JSON."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.dates import MINUTELY, AutoDateLocator, ConciseDateFormatter

from peagle.observe.prometheus import Answer, Line, Span
from peagle.palette import BAD, INK

LINES_MAX = 12
SPARSE_MAX = 4
"""Most samples drawn with dots: a line through a single sample would be invisible."""
_SCALES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def shown(value: float, unit: str) -> str:
    """Return a value with its unit, as short as Grafana shows it."""
    if not math.isfinite(value):
        return "-"
    match unit:
        case "percentunit":
            return f"{value:.1%}"
        case "percent":
            return f"{value:.0f} %"
        case "s":
            return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
        case "suffix:x":
            return f"{value:.2f}x"
        case "currencyUSD":
            return f"${value:.3g}"
    for scale, letter in _SCALES:
        if abs(value) >= scale:
            return f"{value / scale:.3g}{letter}"
    return f"{value:.3g}"


def draw(axes: Axes, panel: dict[str, Any], answers: Sequence[Answer], span: Span) -> None:
    """Draw `panel` into `axes`."""
    axes.set_title(panel["title"], fontsize=9, loc="left")
    axes.tick_params(labelsize=7)
    lines = [line for answer in answers for line in answer.lines]
    problems = [answer.problem for answer in answers if answer.problem]
    if problems or not any(line.has_value for line in lines):
        none = panel["fieldConfig"]["defaults"]["noValue"]
        _say(axes, problems[0] if problems else none, BAD if problems else INK)
        return
    unit = panel["fieldConfig"]["defaults"]["unit"]
    match panel["type"]:
        case "stat":
            text = "\n".join(f"{line.name} {shown(line.points[-1][1], unit)}".strip() for line in lines)
            size, colour = 15 if len(lines) == 1 else 8, colour_of(panel, max(line.points[-1][1] for line in lines))
            axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=size, color=colour)
            axes.set_axis_off()
        case "bargauge":
            _bars(axes, lines, unit)
        case "heatmap":
            is_histogram = panel["targets"][0]["format"] == "heatmap"
            _heat(axes, by_bucket(lines) if is_histogram else lines, span)
        case _:
            _curves(axes, panel, lines, unit, span)


def colour_of(panel: dict[str, Any], value: float) -> str:
    """Return the colour of the highest threshold that `value` reaches; without thresholds, that of text."""
    reached = [step["color"] for step in _steps(panel) if step["value"] is None or value >= step["value"]]
    return str(reached[-1]).replace("text", INK) if reached else INK


def series_colour(panel: dict[str, Any], name: str) -> str | None:
    """Return the colour that `panel` gives to the series of this name, if any."""
    for override in panel["fieldConfig"].get("overrides", ()):
        if override["matcher"]["id"] == "byRegexp" and re.search(override["matcher"]["options"].strip("/"), name):
            return str(override["properties"][0]["value"]["fixedColor"])
    return None


def _steps(panel: dict[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [])
    return steps


def _say(axes: Axes, text: str, colour: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", color=colour, fontsize=8, wrap=True)
    axes.set_axis_off()
    axes.set_title(axes.get_title(loc="left"), fontsize=9, loc="left")


def _bars(axes: Axes, lines: Sequence[Line], unit: str) -> None:
    ordered = sorted(lines, key=lambda line: _rank(line.name))
    values = [line.points[-1][1] for line in ordered]
    bars = axes.bar([line.name for line in ordered], values)
    axes.bar_label(bars, [shown(value, unit) for value in values], fontsize=7)


def _curves(axes: Axes, panel: dict[str, Any], lines: Sequence[Line], unit: str, span: Span) -> None:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    if stacked:
        grid = np.arange(span.start_s, span.end_s + span.step_s / 2, span.step_s)
        colours = [series_colour(panel, line.name) or f"C{index}" for index, line in enumerate(lines)]
        # A step ends at its sample, so that a single sample is visible.
        axes.stackplot(
            _dates(grid),
            [_on(line, grid) for line in lines],
            labels=[line.name for line in lines],
            colors=colours,
            alpha=0.6,
            step="pre",
        )
    for line in lines[: 0 if stacked else LINES_MAX]:
        at, values = np.array(line.points).T
        axes.plot(_dates(at), values, label=line.name, linewidth=1, marker="." if len(at) <= SPARSE_MAX else None)
    for step in _steps(panel):
        low, high = axes.get_ylim()
        if step["value"] is not None and low <= step["value"] <= high:
            axes.axhline(step["value"], color=step["color"], linewidth=0.8, linestyle="--")
    if panel["fieldConfig"]["defaults"].get("min") == 0:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    axes.grid()
    if any(line.name for line in lines):
        axes.legend(fontsize=6)
    _time(axes, span)


def _heat(axes: Axes, lines: Sequence[Line], span: Span) -> None:
    ordered = sorted(lines, key=lambda line: _rank(line.name))
    grid = np.arange(span.start_s, span.end_s, span.step_s)
    rows = np.array([_on(line, grid) for line in ordered])
    ends = _dates(np.array([span.start_s, span.end_s]))
    axes.imshow(
        rows, aspect="auto", origin="lower", cmap="viridis", extent=(ends[0], ends[1], -0.5, len(ordered) - 0.5)
    )
    axes.set_yticks(range(len(ordered)), [line.name for line in ordered])
    _time(axes, span)


def by_bucket(lines: Sequence[Line]) -> list[Line]:
    """Return counts per bucket from cumulative counts, without the infinite bucket."""
    ordered = sorted((line for line in lines if line.name != "+Inf"), key=lambda line: _rank(line.name))
    alone = []
    below: dict[float, float] = {}
    for line in ordered:
        alone.append(Line(line.name, tuple((at, value - below.get(at, 0.0)) for at, value in line.points)))
        below = dict(line.points)
    return alone


def _on(line: Line, grid: Any) -> Any:
    """Return a series' samples at the times of `grid`; 0 where it has none."""
    values = np.zeros(len(grid))
    for at, value in line.points:
        index = round((at - grid[0]) / (grid[1] - grid[0])) if len(grid) > 1 else 0
        if 0 <= index < len(grid) and math.isfinite(value):
            values[index] = value
    return values


def _rank(name: str) -> tuple[int, float | str]:
    try:
        return 0, float(name)
    except ValueError:
        return 1, name


def _dates(seconds: Any) -> Any:
    return np.asarray(seconds) / 86_400.0


def _time(axes: Axes, span: Span) -> None:
    axes.set_xlim(*_dates(np.array([span.start_s, span.end_s])))
    locator = AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
    locator.intervald[MINUTELY] = [1, 2, 5, 10, 15, 30]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))  # type: ignore[no-untyped-call]
