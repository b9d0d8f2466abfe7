"""One thing looked at before an engine starts, and what came of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from peagle.errors import CombinedConfigError, ConfigError


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at (`subject`: file, engine, target or drafter), for what (`name`), and what came of it.

    `detail` says what was found, or why nothing was looked at. `problems` is empty unless `outcome` is wrong; what a
    caution is about can be served as it is.
    """

    subject: str
    name: str
    outcome: Literal["ok", "caution", "wrong", "not checked"]
    detail: str
    problems: tuple[ConfigError, ...] = ()


def run_check(subject: str, name: str, look: Callable[[], str]) -> Check:
    """Call `look`, which returns what it found or raises ConfigError."""
    try:
        return Check(subject, name, "ok", look())
    except ConfigError as error:
        return wrong_check(subject, name, error)


def wrong_check(subject: str, name: str, error: ConfigError) -> Check:
    """Return the check that found `error`."""
    several = len(error.problems) > 1
    return Check(
        subject, name, "wrong", f"{len(error.problems)} problems" if several else error.problem, error.problems
    )


def raise_problems(checks: Iterable[Check]) -> None:
    """Raise what the checks found wrong as one ConfigError, if anything is."""
    problems = [problem for check in checks for problem in check.problems]
    if problems:
        raise CombinedConfigError.of(problems)
