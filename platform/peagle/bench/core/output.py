"""Results on disk and on the terminal: each file appears whole, `result.json` last."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

from rich.table import Table

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import SCHEMA_VERSION
from peagle.bench.core.journal import RESULT, Journal
from peagle.bench.core.options import LoadOptions
from peagle.bench.engines.speculation_report import (
    best_line,
    fastest_line,
    markdown,
    published_lines,
    result_table,
    shifting_line,
)
from peagle.bench.servers.endpoint_report import endpoint_markdown, endpoint_table
from peagle.bench.servers.overhead_report import busy_line, overhead_markdown, overhead_table, verdict_line
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal

REPORT = "report.md"


def result_head(kind: str, journal: Journal, load: LoadOptions) -> dict[str, Any]:
    """What every `result.json` begins with: what was asked, of which version, on which machine."""
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


def write_results(result: Mapping[str, Any], folder: Path, terminal: Terminal) -> None:
    """Write the pictures, the report and the result, and print the table."""
    lines = chain(
        map(fastest_line, result["fastest"]),
        map(best_line, result["best"]),
        published_lines(result["best"]),
        map(shifting_line, result["shifting"]),
    )
    _write(
        result, folder, terminal, _Form(markdown, "peagle.bench.core.plots", result_table(result["rows"]), list(lines))
    )


def write_overhead(result: Mapping[str, Any], folder: Path, terminal: Terminal) -> None:
    """The same of a comparison of servers."""
    lines = [verdict_line(row) for row in result["verdicts"]]
    lines += filter(None, [busy_line(result["hardware"])])
    table = overhead_table(result["rows"])
    _write(result, folder, terminal, _Form(overhead_markdown, "peagle.bench.servers.overhead_plots", table, lines))


def write_endpoints(result: Mapping[str, Any], folder: Path, terminal: Terminal) -> None:
    """The same of a measurement of running servers."""
    table = endpoint_table(result["rows"])
    _write(result, folder, terminal, _Form(endpoint_markdown, "peagle.bench.servers.endpoint_plots", table, ()))


@dataclass(frozen=True, slots=True)
class _Form:
    """How a result is shown: `plots` is the module whose `draw` makes its pictures."""

    markdown: Callable[[Mapping[str, Any], Sequence[str]], str]
    plots: str
    table: Table
    lines: Sequence[str]


def _write(result: Mapping[str, Any], folder: Path, terminal: Terminal, form: _Form) -> None:
    pictures = _draw(result, form.plots, terminal)
    for name, picture in pictures.items():
        replace(folder / name, picture)
    replace(folder / REPORT, form.markdown(result, list(pictures)).encode())
    replace(folder / RESULT, json.dumps(result, indent=2).encode() + b"\n")
    terminal.console.print(form.table, soft_wrap=False)
    for line in form.lines:
        terminal.say(line)
    terminal.say(f"Written: {', '.join([RESULT, REPORT, *pictures])} in {folder}")


def read_result(path: Path) -> dict[str, Any]:
    """The result at `path`: a file, or the folder that holds it.

    Raises:
        ConfigError: There is none, or it is no JSON object.
    """
    file = path / RESULT if path.is_dir() else path
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(str(path), None, f"it holds no result ({error})", f"Name a folder with {RESULT}.") from None
    if not isinstance(result, dict):
        raise ConfigError(str(path), None, "it holds no result", f"Name a folder with {RESULT}.")
    return result


def replace(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader, or a crash, sees the old file or the new one whole."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


def _draw(result: Mapping[str, Any], plots: str, terminal: Terminal) -> dict[str, bytes]:
    try:
        draw = import_module(plots).draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        fix = "Install peagle[bench], then give the command again with --out."
        terminal.say(f"No pictures: {error.name} is not installed. {fix}")
        return {}
    pictures: dict[str, bytes] = draw(result)
    return pictures
