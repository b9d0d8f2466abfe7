"""A replica's lines of progress while it warms up, and how `peagle serve` finds them in its log."""

import re
from pathlib import Path

_FORM = "Warming up: {done} of {of} batches"
_TOLD = re.compile(r"Warming up: (\d+ of \d+ batches)")
_LAST_BYTES = 1 << 16


def warming_line(done: int, of: int) -> str:
    """What a replica writes into its log."""
    return _FORM.format(done=done, of=of)


def warming_in(log: Path) -> str | None:
    """How far the replica that told last has come, as `3 of 40 batches`; None where none did lately."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LAST_BYTES))
            told = _TOLD.findall(file.read().decode(errors="replace"))
    except OSError:
        return None
    return told[-1] if told else None
