"""Results on disk and on the terminal: each file appears whole, `result.json` last."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peagle.bench.journal import RESULT
from peagle.bench.report import best_line, fastest_line, markdown, result_table, shifting_line
from peagle.errors import ConfigError
from peagle.serve.terminal import Terminal

REPORT = "report.md"


def write_results(result: Mapping[str, Any], folder: Path, terminal: Terminal) -> None:
    """Write the pictures, the report and the result, and print the table."""
    pictures = _draw(result, terminal)
    for name, picture in pictures.items():
        replace(folder / name, picture)
    replace(folder / REPORT, markdown(result, list(pictures)).encode())
    replace(folder / RESULT, json.dumps(result, indent=2).encode() + b"\n")
    terminal.console.print(result_table(result["rows"]), soft_wrap=False)
    for lines in (
        map(fastest_line, result["fastest"]),
        map(best_line, result["best"]),
        map(shifting_line, result["shifting"]),
    ):
        for line in lines:
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
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(str(path), None, f"it holds no result ({error})", f"Name a folder with {RESULT}.") from None
    if not isinstance(result, dict):
        raise ConfigError(str(path), None, "it holds no result", f"Name a folder with {RESULT}.")
    return result


def replace(path: Path, content: bytes) -> None:
    """Put `content` at `path` in one step: a reader, or a crash, sees the old file or the new one whole."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    os.replace(draft, path)


def _draw(result: Mapping[str, Any], terminal: Terminal) -> dict[str, bytes]:
    try:
        from peagle.bench.plots import draw
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        terminal.say(f"No pictures: {error.name} is not installed. Install peagle[bench], then give the command again.")
        return {}
    return draw(result)
