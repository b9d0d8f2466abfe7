"""Keeps the terminal for the measurement: what engines print goes to a file."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@dataclass(frozen=True, slots=True)
class Terminal:
    """The real stdout, for results, and the real stderr, for what is going on; `log` has everything else."""

    out: Console
    err: Console
    log: Path

    @contextmanager
    def progress(self, total: int) -> Iterator[Callable[[str], None]]:
        """A bar over `total` steps; what it yields is called with the name of each step as that begins."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.err) as progress:
            task = progress.add_task("", total=total)
            begun = 0

            def begin(name: str) -> None:
                nonlocal begun
                progress.update(task, description=name, completed=begun)
                begun += 1

            yield begin
            progress.update(task, description="done", completed=total)


@contextmanager
def output_to(log: Path) -> Iterator[Terminal]:
    """Send what this process and its children print to `log`, at the level of file descriptors."""
    saved = os.dup(1), os.dup(2)
    with log.open("wb") as file, os.fdopen(os.dup(1), "w") as out, os.fdopen(os.dup(2), "w") as err:
        _redirect((file.fileno(), file.fileno()))
        try:
            yield Terminal(Console(file=out), Console(file=err), log)
        finally:
            _redirect(saved)
            for descriptor in saved:
                os.close(descriptor)


def _redirect(descriptors: tuple[int, int]) -> None:
    for stream, descriptor, number in zip((sys.stdout, sys.stderr), descriptors, (1, 2), strict=True):
        stream.flush()
        os.dup2(descriptor, number)
