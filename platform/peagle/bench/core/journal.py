"""What a comparison has measured so far, on disk: it outlives Ctrl-C and a crash, and the next start goes on from it.

`passes.jsonl` begins with the settings; each line after them is a start of the engines, the chosen prompts, or one
measured pass, written when it is made. A line without its end was being written when the machine stopped: it is not
taken for made.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field, TypeAdapter, ValidationError

from peagle.bench.core.bench_settings import Settings, refuse_other
from peagle.bench.engines.shifting import PhaseRun, TakeKey
from peagle.bench.engines.speculation import MeasuredPass, PassKey, Selection
from peagle.bench.servers.served import PromptTexts, ServedPass
from peagle.errors import ConfigError

JOURNAL, RESULT = "passes.jsonl", "result.json"


@dataclass(frozen=True, slots=True)
class Sitting:
    """One start of the engines: the machine's load before it, and the cores that they keep busy while idle."""

    load_before: float
    idle_cores: float
    kind: Literal["sitting"] = "sitting"


@dataclass(frozen=True, slots=True)
class _Settings:
    settings: dict[str, Any]
    kind: Literal["settings"] = "settings"


@dataclass(frozen=True, slots=True)
class _Selected:
    selection: Selection
    kind: Literal["selection"] = "selection"


@dataclass(frozen=True, slots=True)
class _Pass:
    key: PassKey
    made: MeasuredPass
    kind: Literal["pass"] = "pass"


@dataclass(frozen=True, slots=True)
class _Take:
    key: TakeKey
    phases: tuple[PhaseRun, ...]
    kind: Literal["take"] = "take"


@dataclass(frozen=True, slots=True)
class _Texts:
    texts: PromptTexts
    kind: Literal["texts"] = "texts"


@dataclass(frozen=True, slots=True)
class _Served:
    key: PassKey
    made: ServedPass
    kind: Literal["served"] = "served"


_Entry = Annotated[_Settings | Sitting | _Selected | _Pass | _Take | _Texts | _Served, Field(discriminator="kind")]
_ENTRY: TypeAdapter[Any] = TypeAdapter(_Entry)


class Journal:
    """The open journal of one folder."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.settings: Settings | None = None
        self.sittings: list[Sitting] = []
        self.selection: Selection | None = None
        self.passes: dict[PassKey, MeasuredPass] = {}
        self.takes: dict[TakeKey, tuple[PhaseRun, ...]] = {}
        self.texts: PromptTexts | None = None
        self.served: dict[PassKey, ServedPass] = {}

    @classmethod
    @contextmanager
    def open(cls, folder: Path, settings: Settings) -> "Iterator[Journal]":
        """Go on with the journal in `folder`, or begin one; nobody else may meanwhile.

        Raises:
            ConfigError: It has other settings, another process writes it, a line of it cannot be read, or the folder
                holds a result without a journal.
        """
        path = folder / JOURNAL
        if (folder / RESULT).exists() and not path.exists():
            raise ConfigError("--out", str(folder), f"it holds another {RESULT}", "Name a new folder.")
        with path.open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError("--out", str(folder), "another run writes it now", "Name a new folder.") from None
            journal = cls(file)
            journal._read(path)
            if journal.settings is None:
                journal._keep(_Settings(dict(settings)))
            else:
                refuse_other(_as_written(settings), journal.settings, folder)
            yield journal

    def sit(self, sitting: Sitting) -> None:
        self._keep(sitting)

    def select(self, selection: Selection) -> None:
        self._keep(_Selected(selection))

    def keep_pass(self, key: PassKey, made: MeasuredPass) -> None:
        self._keep(_Pass(key, made))

    def keep_take(self, key: TakeKey, phases: tuple[PhaseRun, ...]) -> None:
        self._keep(_Take(key, phases))

    def select_texts(self, texts: PromptTexts) -> None:
        self._keep(_Texts(texts))

    def keep_served(self, key: PassKey, made: ServedPass) -> None:
        self._keep(_Served(key, made))

    def _keep(self, entry: Any) -> None:
        self._file.write(_ENTRY.dump_json(entry) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._take_in(entry)

    def _read(self, path: Path) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        self._file.truncate(whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                self._take_in(_ENTRY.validate_json(line))
            except ValidationError:
                raise ConfigError(f"{path}:{number}", None, "it cannot be read", "Name a new folder.") from None

    def _take_in(self, entry: Any) -> None:
        match entry:
            case _Settings(settings):
                self.settings = settings
            case Sitting():
                self.sittings.append(entry)
            case _Selected(selection):
                self.selection = selection
            case _Pass(key, made):
                self.passes[key] = made
            case _Take(key, phases):
                self.takes[key] = phases
            case _Texts(texts):
                self.texts = texts
            case _Served(key, made):
                self.served[key] = made


def unfinished(root: Path, settings: Settings) -> Path | None:
    """The newest folder below `root` whose run has these settings and no result yet; folders are named by time."""
    for path in sorted(root.glob(f"*/{JOURNAL}"), reverse=True):
        if not (path.parent / RESULT).exists() and _begins_with(path, settings):
            return path.parent
    return None


def _begins_with(path: Path, settings: Settings) -> bool:
    with path.open("rb") as file:
        try:
            first = _ENTRY.validate_json(file.readline())
        except ValidationError:
            return False
    return isinstance(first, _Settings) and first.settings == _as_written(settings)


def _as_written(settings: Settings) -> dict[str, Any]:
    """The settings after a way through JSON, which knows no tuples and no paths."""
    plain: dict[str, Any] = json.loads(_ENTRY.dump_json(_Settings(dict(settings))))["settings"]
    return plain
