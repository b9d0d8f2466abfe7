"""Finds the one line that says why an engine did not start, in a log of many processes and nested tracebacks."""

import re
from pathlib import Path

# The end of a traceback: an exception's name and its message, whatever process, time and level lead the line.
_RAISED = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (\S.*)$")
# What other processes raise because an engine died; the cause stands before it.
_CONSEQUENCES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "failed to start",
    "RayTaskError",
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_CAUSE = 400


def root_cause(text: str) -> str | None:
    """The first exception in `text` that is no consequence of another; None where there is none."""
    for line in _COLOUR.sub("", text).splitlines():
        found = _RAISED.search(line)
        if found and not any(mark in line for mark in _CONSEQUENCES):
            return found.group(2).strip().rstrip(".")[:LONGEST_CAUSE]
    return None


def root_cause_in(log: Path) -> str | None:
    try:
        return root_cause(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
