"""A panel as data, and its conversion with Grafana's builders."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard, units
from grafana_foundation_sdk.models.common import GraphThresholdsStyleMode, StackingMode, TooltipDisplayMode
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from peagle.palette import FINE, SERIES

DATASOURCE = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_LINE = GraphThresholdsStyleMode.DASHED

WHERE_ADAPTIVE = "Only with adaptive depth (speculation.adaptive)."
"""Note on panels that show the depth rule's estimates."""
NO_REQUESTS = "No requests in this time range."
NOT_ADAPTIVE = "Adaptive depth is off (speculation.adaptive), or there were no requests."
NO_DRAFTS = "No drafts: speculation is off, or K is 0, or there were no requests."
NO_RAY = "Prometheus does not scrape Ray's agents."
NO_GPU = "No GPU, or Prometheus does not scrape NVIDIA's exporter (DCGM)."


class Shape(Enum):
    """Visualization of a panel."""

    LINES = "lines"
    STACK = "stack"
    STAT = "stat"
    BARS = "bars"
    BUCKETS = "buckets"
    """A heat map of a Prometheus histogram, whose query yields `le`."""
    ROWS = "rows"
    """A heat map with one row per series."""


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the legend of each series, with `{{label}}` for a label."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: Title.
        text: Description: how to read the panel.
        unit: Grafana's name of the unit.
        queries: At least one query.
        shape: Visualization.
        width: Width, of 24 columns.
        limits: Ascending thresholds as (value, colour): red and amber where an operator must act.
        lowest, highest: Ends of the axis, if the unit has them.
        none: Text of the panel while it has no data: why.
        names: Ends of the names of series that have a colour of their own, in the palette's order.
        base: Colour of values below the first limit.
    """

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    shape: Shape = Shape.LINES
    width: int = 8
    limits: tuple[tuple[float, str], ...] = ()
    lowest: float | None = 0
    highest: float | None = None
    none: str = NO_REQUESTS
    names: tuple[str, ...] = ()
    base: str = FINE

    @property
    def height(self) -> int:
        return 4 if self.shape is Shape.STAT else 8


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and the panels under it."""

    title: str
    panels: tuple[Panel, ...]


def thresholds(limits: Sequence[tuple[float, str]], base: str) -> builders.ThresholdsConfig:
    steps = [dashboard.Threshold(value=None, color=base if limits else "text")]
    steps += [dashboard.Threshold(value=value, color=colour) for value, colour in limits]
    return builders.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def build(panel: Panel) -> Any:
    """Return Grafana's builder of `panel`."""
    built = _drawn(panel).title(panel.title).description(panel.text).datasource(DATASOURCE)
    built = (
        built.unit(panel.unit).span(panel.width).height(panel.height).thresholds(thresholds(panel.limits, panel.base))
    )
    built = built.no_value(panel.none)
    if panel.shape is not Shape.STAT:
        built = _coloured(built, panel)
    if panel.lowest is not None:
        built = built.min(panel.lowest)
    if panel.highest is not None:
        built = built.max(panel.highest)
    for index, query in enumerate(panel.queries):
        built = built.with_target(_target(panel, query, chr(ord("A") + index)))
    return built


def _coloured(built: Any, panel: Panel) -> Any:
    """Give every query its colour, in a shade per series: Grafana's own palette has red for series that are fine."""
    colours = list(SERIES.values())
    built = built.color_scheme(builders.FieldColor().mode(dashboard.FieldColorModeId.SHADES).fixed_color(colours[0]))
    for index in range(1, len(panel.queries)):
        built = built.override_by_query(chr(ord("A") + index), [_colour("shades", colours[index])])
    for index, name in enumerate(panel.names):
        built = built.override_by_regexp(f"/(^| ){name}$/", [_colour("fixed", colours[index % len(colours)])])
    return built


def _colour(mode: str, colour: str) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val="color", value={"mode": mode, "fixedColor": colour})


def _target(panel: Panel, query: Query, ref_id: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(ref_id)
    target = target.instant() if panel.shape in (Shape.STAT, Shape.BARS) else target.range()
    buckets = panel.shape is Shape.BUCKETS
    return target.format(PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TIME_SERIES)


def _drawn(panel: Panel) -> Any:
    match panel.shape:
        case Shape.STAT:
            values = common.ReduceDataOptions().calcs(["lastNotNull"])
            return stat.Panel().reduce_options(values)
        case Shape.BARS:
            values = common.ReduceDataOptions().calcs(["lastNotNull"])
            return bargauge.Panel().reduce_options(values)
        case Shape.BUCKETS | Shape.ROWS:
            axis = heatmap.YAxisConfig().unit(panel.unit if panel.shape is Shape.BUCKETS else units.Short)
            shown = common.HideSeriesConfig().tooltip(False).legend(False).viz(False)
            colours = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Viridis").steps(64)
            cells = heatmap.Panel().calculate(False).y_axis(axis).cell_gap(0).hide_from(shown)
            return cells.color(colours.exponent(0.5))
        case _:
            drawn = timeseries.Panel().tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
            drawn = drawn.fill_opacity(30 if panel.shape is Shape.STACK else 5)
            if panel.shape is Shape.STACK:
                drawn = drawn.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
            if panel.limits:
                drawn = drawn.thresholds_style(common.GraphThresholdsStyleConfig().mode(_LINE))
            return drawn
