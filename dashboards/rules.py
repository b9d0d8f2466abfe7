"""Rules as data, and their conversion to Prometheus' YAML."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

RUNBOOKS = "dashboards/runbooks.md"
"""The page with a section per alert; the chart puts a base URL in front."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording rule; `record` is level:metric:operations, as in Prometheus' naming guide."""

    record: str
    expr: str

    def plain(self) -> dict[str, Any]:
        return {"record": self.record, "expr": self.expr}


@dataclass(frozen=True, slots=True)
class Alert:
    """An actionable alert; `runbook` says what it means, where to look and what to do."""

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
                # A heading's anchor, in the form of Git hosts.
                "runbook_url": f"{RUNBOOKS}#{self.name.lower()}",
            },
        }


def text_of(groups: Mapping[str, Iterable[Recording | Alert]]) -> str:
    """Return rule groups as the file that Prometheus loads."""
    plain = {"groups": [{"name": name, "rules": [rule.plain() for rule in rules]} for name, rules in groups.items()]}
    return "# Written by `make dashboards`. Do not edit.\n" + yaml.safe_dump(plain, sort_keys=False, width=110)
