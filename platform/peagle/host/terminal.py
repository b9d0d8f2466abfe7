"""Terminal output: the platform's own lines on the terminal, everything else in a log file."""

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from peagle.errors import StartupError

LOG_BYTES_MAX = 64 * 2**20
"""Largest log in bytes; a larger log is moved to `NAME.1`, which replaces the former one."""
_LOOK_S = 5.0

_STATE_FIX = "Set XDG_STATE_HOME to a writable folder"


def log_path(port: int) -> Path:
    """Return the file for Ray's and vLLM's logs; every start on that port overwrites it, and its size is bounded."""
    return _state() / f"serve-{port}.log"


def former(log: Path) -> Path:
    """Return the file that an oversized log is moved to."""
    return log.with_name(f"{log.name}.1")


def agents_path(port: int) -> Path:
    """Return the file with the addresses of Ray's agents for Prometheus, while a server runs on that port."""
    return _state() / f"agents-{port}.json"


def _state() -> Path:
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise StartupError("this user has no home folder for the logs", _STATE_FIX) from None
    return Path(home) / "peagle"


class Terminal:
    """Keeps the terminal for the platform's lines: while entered, all other output goes to the log."""

    def __init__(self, log: Path, log_bytes_max: int = LOG_BYTES_MAX, look_s: float = _LOOK_S) -> None:
        """Args:
        log: The file, which is overwritten.
        log_bytes_max: Size limit, checked every `look_s`.
        look_s: Interval between checks of its size, in seconds.
        """
        self.log = log
        self._bounds, self._done = (log_bytes_max, look_s), threading.Event()
        self._screen: TextIO = sys.stdout
        self._saved: tuple[int, int] = (1, 2)
        self.console = Console()

    def __enter__(self) -> Self:
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_bytes(b"")
            former(self.log).unlink(missing_ok=True)
            # Appending writes at the current end: child processes share the descriptor.
            opened = self.log.open("ab")
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
        self._done.clear()
        threading.Thread(target=self._keep_bounded, name="log size", daemon=True).start()
        return self

    def _keep_bounded(self) -> None:
        log_bytes_max, look_s = self._bounds
        while not self._done.wait(look_s):
            with contextlib.suppress(OSError):  # a full disk, or the file was removed
                if self.log.stat().st_size > log_bytes_max:
                    shutil.copyfile(self.log, former(self.log))
                    os.truncate(self.log, 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
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
        """Show one step with its duration: a spinner while it runs on a terminal, a line when it is done."""
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
        # Rich's clock, so that tests and recordings can set it.
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
        """Show the step's progress."""
        self._detail = detail
        if self._status is not None:
            self._status.update(f"{escape(self._title)}: {escape(detail)}  [dim]{self.elapsed_s:.0f} s[/dim]")

    def end(self, mark: str, style: str) -> None:
        if self._status is not None:
            self._status.stop()
        said = f"{self._title}: {self._detail}" if self._detail else self._title
        self._console.print(f"[{style}]{mark}[/{style}] {escape(said)}  [dim]{self.elapsed_s:.1f} s[/dim]")
