"""Outcome of one check."""

from dataclasses import asdict, dataclass
from enum import StrEnum

from peagle.errors import ClusterError


class Outcome(StrEnum):
    """Result of a check: with a failure the release cannot run, with a warning it may not."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """Subject, outcome and detail of a check, with the fix if it does not pass."""

    subject: str
    outcome: Outcome
    detail: str
    fix: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


def passed(subject: str, detail: str) -> Check:
    return Check(subject, Outcome.PASS, detail)


def warned(subject: str, detail: str, fix: str) -> Check:
    return Check(subject, Outcome.WARN, detail, fix)


def failed(subject: str, detail: str, fix: str) -> Check:
    return Check(subject, Outcome.FAIL, detail, fix)


def unknown(subject: str, error: ClusterError) -> Check:
    """Return a warning for a fact that this account may not read."""
    fix = f"Use an account that may {error.action}." if error.status == 403 else "Read the cluster's logs."
    return Check(subject, Outcome.WARN, f"cannot be checked: {error.reason}", fix)
