"""Finds the one line that says why an engine did not start, in a log of many processes and nested tracebacks."""

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

# The end of a traceback: an exception's name and its message, whatever process, time and level lead the line.
_RAISED = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (\S.*)$")
# What other processes raise because an engine died; the cause stands before it.
_CONSEQUENCES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "failed to start",
    "RayTaskError",
    # An exception whose message is another's traceback, which follows.
    "Error: Traceback (most recent call last)",
)
# pydantic says what is wrong in a later line, which ends so.
_INVALID, _TYPE = re.compile(r"\d+ validation errors? for \w+$"), " [type="
_PROCESS = re.compile(r"^\([^)]*\)\s*")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_CAUSE = 400


def root_cause(text: str) -> str | None:
    """The first exception in `text` that is no consequence of another; None where there is none."""
    lines = _COLOUR.sub("", text).splitlines()
    for number, line in enumerate(lines):
        found = _RAISED.search(line)
        if found and not any(mark in line for mark in _CONSEQUENCES):
            cause = _invalid(lines[number + 1 :]) if _INVALID.search(line) else None
            return (cause or found.group(2)).strip().rstrip(".")[:LONGEST_CAUSE]
    return None


def _invalid(lines: Iterable[str]) -> str | None:
    """The first of pydantic's complaints in the lines after its headline."""
    complaint = next((line for line in islice(lines, 5) if _TYPE in line), None)
    if complaint is None:
        return None
    return _PROCESS.sub("", complaint).partition(_TYPE)[0].strip().removeprefix("Value error, ")


def root_cause_in(log: Path) -> str | None:
    try:
        return root_cause(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
