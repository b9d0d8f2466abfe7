"""Names of series in a PromQL expression, read from its syntax tree, without labels and functions."""

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from dashboards import external
from peagle.metrics import METRICS

# Variables that Grafana fills in before a query.
_WINDOW, _NUMBER = re.compile(r"\$__rate_interval\b"), re.compile(r"\$price\b")
# Labels that a scrape adds to every series.
SCRAPED = frozenset({"namespace", "job", "instance", "pod"})

DECLARED = {
    series: frozenset(metric.label_names) | SCRAPED | ({"le"} if series.endswith("_bucket") else set())
    for metric in METRICS
    for series in metric.series
}
"""Every series that the platform exports, with its labels."""

BOUNDED = {
    (series, label.name): label.values
    for metric in METRICS
    for series in metric.series
    for label in metric.labels
    if label.values
}
"""Known values of a series' label."""
OUTCOMES = next(label.values for metric in METRICS for label in metric.labels if label.name == "outcome")


def nodes(expr: str) -> list[Any]:
    """Return every node of the syntax tree of `expr`. Raises ValueError if Prometheus would refuse it."""
    found: list[Any] = []
    promql_parser.walk(promql_parser.parse(_NUMBER.sub("1", _WINDOW.sub("5m", expr))), found.append)
    return found


def selectors(nodes: list[Any]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each selected series, with the labels in its filter."""
    for node in nodes:
        if isinstance(node, promql_parser.VectorSelector):
            yield node.name, frozenset(matcher.name for matcher in node.matchers.matchers)


def wrong_values(nodes: list[Any]) -> Iterator[str]:
    """Yield each filter value that the series' label never has."""
    for node in nodes:
        if not isinstance(node, promql_parser.VectorSelector):
            continue
        for matcher in node.matchers.matchers:
            # Recorded series with an outcome are all about requests.
            usual = OUTCOMES if matcher.name == "outcome" else None
            known = BOUNDED.get((node.name, matcher.name), usual)
            if known is None or matcher.value.startswith("$"):
                continue
            regular = matcher.op in (promql_parser.MatchOp.Re, promql_parser.MatchOp.NotRe)
            for value in matcher.value.split("|") if regular else [matcher.value]:
                if value not in known:
                    yield f"{node.name} has no {matcher.name} {value}"


def aggregations(nodes: list[Any]) -> Iterator[tuple[frozenset[str], set[str]]]:
    """Yield the labels by which each aggregation groups, and the series inside it."""
    for node in nodes:
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            inside: list[Any] = []
            promql_parser.walk(node.expr, inside.append)
            yield frozenset(node.modifier.labels), {name for name, _ in selectors(inside)}


def wrong_names(expr: str, recorded: dict[str, frozenset[str]] | None = None) -> list[str]:
    """Return series in `expr` that nothing exports, and labels that series do not have."""
    known = {**DECLARED, **(recorded or {})}
    tree = nodes(expr)
    wrong = [*wrong_values(tree)]
    for name, filters in selectors(tree):
        if name in known:
            wrong += [f"{name} has no label {label}" for label in sorted(filters - known[name])]
        elif name not in external.SERIES:
            wrong.append(f"nothing exports {name}")
    for labels, names in aggregations(tree):
        if names <= set(known):
            having = frozenset().union(*(known[name] for name in names))
            wrong += [f"none of {sorted(names)} has the label {label}" for label in sorted(labels - having)]
    return wrong
