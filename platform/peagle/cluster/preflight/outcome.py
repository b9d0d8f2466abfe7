"""The outcome of one check, and how it reads."""

from dataclasses import asdict, dataclass
from enum import StrEnum

from peagle.errors import ClusterError


class Outcome(StrEnum):
    """How a check ended: a failure stops the release from running, a warning may."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do where it does not pass."""

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
    """What this account may not see cannot be judged."""
    fix = f"Have an account look that may {error.action}." if error.status == 403 else "Look into the cluster's logs."
    return Check(subject, Outcome.WARN, f"cannot be checked: {error.reason}", fix)
