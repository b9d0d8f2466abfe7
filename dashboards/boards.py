"""Common parts of all dashboards: variables, links, annotations; and conversion to Grafana's JSON."""

import json
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard

from dashboards.panels import DATASOURCE, Row, build

TAG = "peagle"
ALL = dashboard.VariableOption(text="All", value="$__all", selected=True)

# Filters of queries. Without an operator there is no namespace label, and `.*` matches that as well.
SPACE = 'namespace=~"$namespace"'
OF_MODEL = f'{SPACE}, model=~"$model"'
OF_REPLICA = f'{OF_MODEL}, replica=~"$replica"'

PLAN_CHANGES, ROLL_OUTS = "Plan changes", "Roll-outs"
SAID = {
    PLAN_CHANGES: {
        "titleFormat": "K changes: {{cause}}",
        "textFormat": "{{model}} {{replica}}",
        "tagKeys": "model,cause",
    },
    ROLL_OUTS: {"titleFormat": "Replicas {{state}}", "textFormat": "{{model}}", "tagKeys": "model,state"},
}
"""Grafana's format of each annotation."""


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. Links and bookmarks contain `uid`, so it never changes; `variables` are those it uses."""

    uid: str
    title: str
    text: str
    rows: tuple[Row, ...]
    variables: tuple[str, ...] = ("namespace", "model", "replica")

    @property
    def file(self) -> str:
        return f"{self.uid.removeprefix('peagle-')}.json"


def _query(name: str, text: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(text)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(ALL)
    )


def _variable(name: str) -> builders.QueryVariable | builders.TextBoxVariable:
    match name:
        case "namespace":
            return _query(name, "Namespace", "label_values(peagle_replicas_answering, namespace)")
        case "model":
            return _query(name, "Model", f"label_values(peagle_replicas_answering{{{SPACE}}}, model)")
        case "replica":
            return _query(name, "Replica", f"label_values(peagle_replica_running_requests{{{OF_MODEL}}}, replica)")
        case "price":
            return builders.TextBoxVariable(name).label("Price of a device-hour").default_value("1")
        case _:
            raise ValueError(f"no variable {name}")


def _annotation(name: str, colour: str, expr: str) -> builders.AnnotationQuery:
    return builders.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color(colour).expr(expr)


def _plan_changes(by_replica: bool) -> str:
    """Changes of K, without trials, which would add two each, and without changes that only follow the load."""
    scope = f'{OF_REPLICA if by_replica else OF_MODEL}, cause!~"load|probe|probe_reverted"'
    changes = f"increase(peagle_replica_depth_changes_total{{{scope}}}[2m])"
    return f"sum by (model, replica, cause) ({changes}) > 0"


def grafana(board: Board) -> builders.Dashboard:
    """Return Grafana's builder of `board`."""
    links = builders.DashboardLink("peagle").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
    built = (
        builders.Dashboard(board.title)
        .uid(board.uid)
        .description(board.text)
        .tags([TAG])
        .readonly()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .link(links.as_dropdown(True).include_vars(True).keep_time(True))
        .with_variable(builders.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for name in board.variables:
        built = built.with_variable(_variable(name))
    if "model" in board.variables:
        rolling = f'sum by (model, state) (peagle_replicas{{{OF_MODEL}, state=~"starting|updating|stopping"}}) > 0'
        built = built.annotation(_annotation(PLAN_CHANGES, "blue", _plan_changes("replica" in board.variables)))
        built = built.annotation(_annotation(ROLL_OUTS, "purple", rolling))
    for row in board.rows:
        built = built.with_row(builders.Row(row.title))
        for panel in row.panels:
            built = built.with_panel(build(panel))
    return built


def text_of(board: Board) -> str:
    """Return `board` as the JSON that Grafana imports; panels are numbered in order, so that links stay valid."""
    built = grafana(board).build()
    for number, panel in enumerate(built.panels or [], start=1):
        panel.id_val = number
    plain = json.loads(json.dumps(built, cls=JSONEncoder))
    for annotation in plain.get("annotations", {}).get("list", ()):
        # The SDK has no fields for Prometheus annotations.
        annotation |= SAID.get(annotation["name"], {})
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
