"""Results on disk and on the terminal: each file is written atomically, `result.json` last."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import SCHEMA_VERSION, digest
from peagle.bench.core.journal import RESULT, Journal
from peagle.bench.core.options import LoadOptions
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal

REPORT = "report.md"

Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """Presentation of one kind of result: pictures by file name, report, table, and lines below it."""

    draw: Callable[[Result], dict[str, bytes]]
    markdown: Callable[[Result, Sequence[str]], str]
    table: Callable[[Sequence[Any]], Table]
    summary: Callable[[Result], Sequence[str]] = lambda _: ()


def result_head(kind: str, journal: Journal, load: LoadOptions) -> dict[str, Any]:
    """Return the common head of every `result.json`: settings, versions and machine."""
    busiest = max(each.load_before for each in journal.sittings)
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": kind,
        "command": shlex.join(["peagle", *sys.argv[1:]]),
        "commit": machine.commit(),
        "versions": machine.versions(),
        "hardware": machine.hardware() | {"load_before": busiest},
        "sittings": len(journal.sittings),
        "repeats": load.repeats,
        "output_tokens": load.tokens,
    }


def prompt_figures(journal: Journal) -> dict[str, Any]:
    """Return figures about the chosen prompts."""
    chosen = journal.chosen
    return {
        "count": len(chosen.prompts),
        "digest": digest(chosen.prompts),
        "tokens_median": int(median(chosen.tokens)),
        "examined": chosen.examined,
        "too_long": chosen.too_long,
    }


def write_result(result: Result, form: Form, folder: Path, terminal: Terminal) -> None:
    """Write the pictures, the report and the result, and print the table."""
    pictures = _draw(result, form, terminal)
    for name, picture in pictures.items():
        replace(folder / name, picture)
    replace(folder / REPORT, form.markdown(result, list(pictures)).encode())
    replace(folder / RESULT, json.dumps(result, indent=2).encode() + b"\n")
    terminal.console.print(form.table(result["rows"]), soft_wrap=False)
    for line in form.summary(result):
        terminal.say(line)
    terminal.say(f"Written: {', '.join([RESULT, REPORT, *pictures])} in {folder}")


def read_result(path: Path) -> dict[str, Any]:
    """Read the result at `path`, a file or its folder. Raises ConfigError if it is missing or not a JSON object."""
    file = path / RESULT if path.is_dir() else path
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), None, f"it has no result ({error})", f"Name a folder with {RESULT}.") from None
    if not isinstance(result, dict):
        raise ConfigError(str(path), None, "it has no result", f"Name a folder with {RESULT}.")
    return result


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically: a reader sees either the old or the new file."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


def _draw(result: Result, form: Form, terminal: Terminal) -> dict[str, bytes]:
    try:
        return form.draw(result)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        fix = "Install peagle[bench], then run the command again with --out."
        terminal.say(f"No pictures: {error.name} is not installed. {fix}")
        return {}
