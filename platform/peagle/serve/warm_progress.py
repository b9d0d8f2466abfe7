"""A replica's progress lines while it warms up: written to its log, read by `peagle serve`."""

import re
from pathlib import Path

_FORM = "Warming up: {done} of {of} batches"
_TOLD = re.compile(r"Warming up: (\d+ of \d+ batches)")
_LAST_BYTES = 1 << 16


def warming_line(done: int, of: int) -> str:
    """Return a progress line for the replica's log."""
    return _FORM.format(done=done, of=of)


def warming_in(log: Path) -> str | None:
    """Return the latest progress in the log, as `3 of 40 batches`; None if there is none recently."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))
            told = _TOLD.findall(file.read().decode(errors="replace"))
    except OSError:
        return None
    return told[-1] if told else None
