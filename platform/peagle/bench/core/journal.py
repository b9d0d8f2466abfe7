"""Measured passes on disk, from which an interrupted measurement is resumed.

`passes.jsonl` begins with the settings; each later line is a start of the compared engines or servers, the chosen
prompts, or one measured pass, written at once. An incomplete last line was being written when the machine stopped, and
is ignored.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, Protocol, Union

from pydantic import Field, TypeAdapter, ValidationError

from peagle.bench.core.bench_settings import Settings, refuse_other
from peagle.errors import ConfigError

JOURNAL, RESULT = "passes.jsonl", "result.json"


class Entry(Protocol):
    """A line of the journal: a dataclass with a distinct `kind`."""

    def enter(self, journal: "Journal") -> None:
        """Store its contents in the journal."""


@dataclass(frozen=True, slots=True)
class Sitting:
    """One start of the compared subjects: the machine's load before it, and the cores kept busy while idle."""

    load_before: float
    idle_cores: float
    kind: Literal["sitting"] = "sitting"

    def enter(self, journal: "Journal") -> None:
        journal.sittings.append(self)


@dataclass(frozen=True, slots=True)
class _Settings:
    settings: dict[str, Any]
    kind: Literal["settings"] = "settings"

    def enter(self, journal: "Journal") -> None:
        journal.settings = self.settings


_SETTINGS = TypeAdapter(_Settings)


class Journal:
    """The open journal of one folder, whose lines are settings, sittings and `entries`.

    Entries store the prompts in `chosen`, measured passes in `made` by a key with a `repeat`, and other observations in
    `notes`.
    """

    def __init__(self, file: BinaryIO, entries: Sequence[type[Entry]]) -> None:
        kinds: Any = Union[(_Settings, Sitting, *entries)]
        self._line: TypeAdapter[Any] = TypeAdapter(Annotated[kinds, Field(discriminator="kind")])
        self._file = file
        self.settings: Settings | None = None
        self.sittings: list[Sitting] = []
        self.chosen: Any = None
        self.made: dict[Any, Any] = {}
        self.notes: list[Any] = []

    @classmethod
    @contextmanager
    def open(cls, folder: Path, settings: Settings, entries: Sequence[type[Entry]]) -> "Iterator[Journal]":
        """Resume or begin the journal in `folder`, with an exclusive lock.

        Raises ConfigError if it has other settings, another process is writing it, a line cannot be read, or the folder
        has a result without a journal.
        """
        path = folder / JOURNAL
        if (folder / RESULT).exists() and not path.exists():
            raise ConfigError("--out", str(folder), f"it already has a {RESULT}", "Name a new folder.")
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError("--out", str(folder), "another run is writing it", "Name a new folder.") from None
            journal = cls(file, entries)
            journal._read(path, settings)
            if journal.settings is None:
                journal.keep(_Settings(dict(settings)))
            yield journal

    def keep(self, entry: Entry) -> None:
        self._file.write(self._line.dump_json(entry) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        entry.enter(self)

    def _read(self, path: Path, settings: Settings) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        self._file.truncate(whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                entry = self._line.validate_json(line)
            except ValidationError:
                raise ConfigError(f"{path}:{number}", None, "it cannot be read", "Name a new folder.") from None
            entry.enter(self)
            if isinstance(entry, _Settings):  # later lines may be of another kind
                refuse_other(_as_written(settings), entry.settings, path.parent)


def unfinished(root: Path, settings: Settings) -> Path | None:
    """Return the newest folder below `root` with an unfinished run of these settings; folders are named by time."""
    for path in sorted(root.glob(f"*/{JOURNAL}"), reverse=True):
        if not (path.parent / RESULT).exists() and _begins_with(path, settings):
            return path.parent
    return None


def _begins_with(path: Path, settings: Settings) -> bool:
    with path.open("rb") as file:
        try:
            return _SETTINGS.validate_json(file.readline()).settings == _as_written(settings)
        except ValidationError:
            return False


def _as_written(settings: Settings) -> dict[str, Any]:
    """Return the settings as read back from JSON, without tuples and paths."""
    plain: dict[str, Any] = json.loads(_SETTINGS.dump_json(_Settings(dict(settings))))["settings"]
    return plain
