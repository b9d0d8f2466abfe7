"""What the operator sees: our few lines on the terminal, everything else in a file."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from peagle.errors import StartupError

_STATE_FIX = "Set XDG_STATE_HOME to a folder that you may write"


def log_path(port: int) -> Path:
    """The file that takes Ray's and vLLM's logs; every start on that port writes it anew."""
    return _state() / f"serve-{port}.log"


def agents_path(port: int) -> Path:
    """The file that tells Prometheus where Ray's agents are, while a server runs on that port."""
    return _state() / f"agents-{port}.json"


def _state() -> Path:
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise StartupError("this user has no home folder for the logs", _STATE_FIX) from None
    return Path(home) / "peagle"


class Terminal:
    """Keeps the terminal for our own lines: while entered, everything else that is printed goes to the log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._screen: TextIO = sys.stdout
        self._saved: tuple[int, int] = (1, 2)
        self.console = Console()

    def __enter__(self) -> Self:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            opened = self.log.open("wb")
        except OSError as error:
            raise StartupError(f"the log {self.log} cannot be written ({error.strerror})", _STATE_FIX) from None
        sys.stdout.flush()
        sys.stderr.flush()
        self._saved = (os.dup(1), os.dup(2))
        # Descriptors rather than sys.stdout: C++ libraries and child processes write to these.
        with opened as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
        self._screen = os.fdopen(os.dup(self._saved[0]), "w", encoding="utf-8", buffering=1)
        self.console = Console(file=self._screen, highlight=False, soft_wrap=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, saved in enumerate(self._saved, start=1):
            os.dup2(saved, number)
            os.close(saved)
        self._screen.close()

    def say(self, line: str) -> None:
        self.console.print(line, markup=False)

    @contextlib.contextmanager
    def stage(self, title: str) -> Iterator["Stage"]:
        """Show one step with its seconds: a spinner while it runs on a terminal, a line when it is done."""
        stage = Stage(title, self.console)
        try:
            yield stage
        except BaseException:
            stage.end("✗", "red")
            raise
        stage.end("✓", "green")


class Stage:
    """One step of a start or a stop."""

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._detail, self._console = title, "", console
        # Rich's clock, so that tests and recordings can turn it.
        self._start_s = console.get_time()
        self._status: Status | None = None
        if console.is_terminal:
            self._status = console.status(escape(title))
            self._status.start()
        else:
            console.print(f"… {title}", markup=False)

    @property
    def elapsed_s(self) -> float:
        return self._console.get_time() - self._start_s

    def detail(self, detail: str) -> None:
        """Say how far it is."""
        self._detail = detail
        if self._status is not None:
            self._status.update(f"{escape(self._title)}: {escape(detail)}  [dim]{self.elapsed_s:.0f} s[/dim]")

    def end(self, mark: str, style: str) -> None:
        if self._status is not None:
            self._status.stop()
        said = f"{self._title}: {self._detail}" if self._detail else self._title
        self._console.print(f"[{style}]{mark}[/{style}] {escape(said)}  [dim]{self.elapsed_s:.1f} s[/dim]")
