"""Dashboards are current, match Grafana's schema, and query only exported series."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.boards import SAID
from dashboards.generate import BOARDS, CHART, HERE, generated
from peagle.palette import BAD, FINE, SERIES, WARN
from support.observe.dashboard_queries import panels, queries
from support.observe.promql_names import nodes, selectors, wrong_names

FILES = sorted((HERE / "generated").glob("*.json"))
TEXTS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}

board = pytest.mark.parametrize("board", TEXTS.values(), ids=TEXTS)


def test_the_generated_files_are_current_and_no_other_lies_there() -> None:
    expected = generated()
    for path, text in expected.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run make dashboards"
    for folder in (HERE / "generated", CHART / "dashboards", CHART / "alerts"):
        assert {path for path in folder.iterdir() if path.suffix in (".json", ".yaml")} <= set(expected)


@board
def test_every_query_names_only_what_is_exported(board: dict[str, Any]) -> None:
    asked = list(queries(board))
    assert len(asked) >= len(list(panels(board)))
    assert {query: wrong for query in asked if (wrong := wrong_names(query))} == {}


@pytest.mark.parametrize(
    "query",
    [
        "peagle_no_such_series",
        "rate(peagle_requests[5m])",
        'sum(peagle_replicas{outcome="ok"})',
        "sum by (outcome) (peagle_replicas)",
        'peagle_replicas{state="strating"}',
        'rate(peagle_requests_total{outcome=~"ok|fail"}[5m])',
        "sum by (model) (sum by (outcome) (rate(peagle_replica_drafts_total[5m])))",
    ],
)
def test_a_query_that_names_what_is_not_exported_is_found(query: str) -> None:
    assert wrong_names(query)


@board
def test_the_dashboard_is_one_of_grafana_s_schema(board: dict[str, Any]) -> None:
    register_default_plugins()
    # What an annotation says is its data source's to define, and the SDK has no types for Prometheus'.
    said = {name for fields in SAID.values() for name in fields}
    board = copy.deepcopy(board)
    for annotation in board.get("annotations", {}).get("list", ()):
        assert said <= annotation.keys()
        for name in said:
            del annotation[name]
    read_back = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert read_back == board


@board
def test_every_panel_says_what_it_shows_and_in_which_unit(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


@board
def test_a_panel_without_data_says_why(board: dict[str, Any]) -> None:
    for panel in panels(board):
        assert panel["fieldConfig"]["defaults"]["noValue"].endswith("."), panel["title"]


@board
def test_red_and_amber_are_of_thresholds_only(board: dict[str, Any]) -> None:
    for panel in panels(board):
        defaults, overrides = panel["fieldConfig"]["defaults"], panel["fieldConfig"]["overrides"]
        steps = {step["color"] for step in defaults["thresholds"]["steps"]}
        assert steps <= {"text", FINE, WARN, BAD}, panel["title"]
        given = [*([defaults["color"]] if panel["type"] != "stat" else []), *_overriding(overrides)]
        assert {each["mode"] for each in given} <= {"shades", "fixed"}, "Grafana's own palette has red"
        assert {each["fixedColor"] for each in given} <= set(SERIES.values()), panel["title"]


def _overriding(overrides: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [each["value"] for override in overrides for each in override["properties"]]


@board
def test_panels_lie_side_by_side_within_the_grid_and_leave_no_gap(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(taken) == 24 * len({y for _, y in taken}), "a row is not full"


@board
def test_a_query_uses_only_variables_that_its_dashboard_has(board: dict[str, Any]) -> None:
    known = {variable["name"] for variable in board["templating"]["list"]}
    for query in queries(board):
        used = set(re.findall(r"\$([a-z]+)", query))
        assert used <= known, query


@board
def test_a_query_of_a_release_s_series_is_filtered_by_namespace(board: dict[str, Any]) -> None:
    """Else a board shows every release that this Prometheus scrapes."""
    (variable,) = [each for each in board["templating"]["list"] if each["name"] == "namespace"]
    # Takes series without the label too: no Kubernetes, no namespace.
    assert variable["allValue"] == ".*"
    for query in set(queries(board)) - {"sum by (namespace) (peagle_replicas_answering)"}:
        own = [(name, labels) for name, labels in selectors(nodes(query)) if name.startswith(("peagle_", "ray_"))]
        assert [name for name, labels in own if "namespace" not in labels] == [], query
        assert query.count('namespace=~"$namespace"') == len(own)


def test_dashboards_have_stable_and_different_addresses() -> None:
    assert [each.uid for each in BOARDS] == [
        "peagle-overview",
        "peagle-speculation",
        "peagle-router",
        "peagle-engine",
        "peagle-nodes",
    ]
    assert {Path(each.file).stem for each in BOARDS} == set(TEXTS)
