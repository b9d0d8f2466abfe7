"""Rules as data, and how they become Prometheus' YAML."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

RUNBOOKS = "dashboards/runbooks.md"
"""The page with a section for each alert; the chart puts an address before it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """`record` is level:metric:operations, as Prometheus' own guide names recorded series."""

    record: str
    expr: str

    def plain(self) -> dict[str, Any]:
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that somebody can act on: `runbook` says what it means, where to look and what to do."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    runbook: str

    def plain(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasts,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "runbook": self.runbook,
                # A heading's anchor, as Git hosts write it.
                "runbook_url": f"{RUNBOOKS}#{self.name.lower()}",
            },
        }


def text_of(groups: Mapping[str, Iterable[Recording | Alert]]) -> str:
    """Return rule groups as the file that Prometheus loads."""
    plain = {"groups": [{"name": name, "rules": [rule.plain() for rule in rules]} for name, rules in groups.items()]}
    return "# Written by `make dashboards`. Do not edit.\n" + yaml.safe_dump(plain, sort_keys=False, width=110)
