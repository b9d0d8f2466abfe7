"""Prometheus queries of a generated dashboard."""

from collections.abc import Iterator
from typing import Any


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (panel for panel in board["panels"] if panel["type"] != "row")


def queries(board: dict[str, Any]) -> Iterator[str]:
    """The queries of its panels, annotations and variables."""
    for panel in panels(board):
        yield from (target["expr"] for target in panel["targets"])
    yield from (annotation["expr"] for annotation in board["annotations"].get("list", ()))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            # label_values(SERIES, LABEL)
            asked, _, label = (
                variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rpartition(", ")
            )
            yield f"sum by ({label}) ({asked})"
