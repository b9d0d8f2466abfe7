"""A check made before an engine starts, and its outcome."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from peagle.errors import CombinedConfigError, ConfigError


@dataclass(frozen=True, slots=True)
class Check:
    """A check of `subject` (file, engine, target or drafter) for `name`, and its outcome.

    `detail` states the finding, or why nothing was checked. `problems` is empty unless `outcome` is wrong; a deployment
    with a caution can still be served.
    """

    subject: str
    name: str
    outcome: Literal["ok", "caution", "wrong", "not checked"]
    detail: str
    problems: tuple[ConfigError, ...] = ()


def run_check(subject: str, name: str, look: Callable[[], str]) -> Check:
    """Run `look`, which returns its finding or raises ConfigError."""
    try:
        return Check(subject, name, "ok", look())
    except ConfigError as error:
        return wrong_check(subject, name, error)


def wrong_check(subject: str, name: str, error: ConfigError) -> Check:
    """Return the failed check for `error`."""
    several = len(error.problems) > 1
    return Check(
        subject, name, "wrong", f"{len(error.problems)} problems" if several else error.problem, error.problems
    )


def raise_problems(checks: Iterable[Check]) -> None:
    """Raise all problems of the checks as one ConfigError, if there are any."""
    problems = [problem for check in checks for problem in check.problems]
    if problems:
        raise CombinedConfigError.of(problems)
