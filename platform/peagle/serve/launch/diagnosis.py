"""Finds the line with the root cause of a failed start, in a log of many processes and nested tracebacks."""

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

# The end of a traceback: an exception's name and message, after any process, time and level prefix.
_RAISED = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (\S.*)$")
# Exceptions that other processes raise because an engine died; the cause comes before them.
_CONSEQUENCES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "failed to start",
    "RayTaskError",
    # An exception whose message is another traceback, which follows.
    "Error: Traceback (most recent call last)",
)
# pydantic describes the problem in a later line, which ends like this.
_INVALID, _TYPE = re.compile(r"\d+ validation errors? for \w+$"), " [type="
_PROCESS = re.compile(r"^\([^)]*\)\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_CAUSE = 400


def root_cause(text: str) -> str | None:
    """Return the first exception in `text` that is not a consequence of another; None if there is none."""
    lines = _COLOUR.sub("", text).splitlines()
    for number, line in enumerate(lines):
        found = _RAISED.search(line)
        if found and not any(mark in line for mark in _CONSEQUENCES):
            cause = _invalid(lines[number + 1 :]) if _INVALID.search(line) else None
            return (cause or found.group(2)).strip().rstrip(".")[:LONGEST_CAUSE]
    return None


def _invalid(lines: Iterable[str]) -> str | None:
    """Return the first of pydantic's errors in the lines after its headline."""
    complaint = next((line for line in islice(lines, 5) if _TYPE in line), None)
    if complaint is None:
        return None
    return _PROCESS.sub("", complaint).partition(_TYPE)[0].strip().removeprefix("Value error, ")


def root_cause_in(log: Path) -> str | None:
    try:
        return root_cause(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
