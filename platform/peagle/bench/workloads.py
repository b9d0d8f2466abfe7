"""Prompts to measure with: held-out text that no part of the embedded model has seen."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from peagle.errors import ConfigError

Prompt = TypeVar("Prompt")


def read_prompts(path: Path | None = None) -> list[str]:
    """Prompts from a file of JSON lines `{"prompt": ...}`; without one, the held-out prompts shipped here.

    Raises:
        ConfigError: The file is missing, or a line of it is not such an object.
    """
    source = path or files("peagle.bench") / "data" / "held_out.jsonl"
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("prompts", str(source), f"it cannot be read ({error})", "Name a JSON-lines file.") from None
    prompts = []
    for number, line in enumerate(lines, start=1):
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str) or not prompt:
            raise ConfigError(f"{source}:{number}", line[:60], "it holds no prompt", 'Write {"prompt": "..."}.')
        prompts.append(prompt)
    return prompts


def prompt_sets(prompts: Sequence[Prompt], concurrency: int, rounds: int = 3) -> list[list[Prompt]]:
    """Split prompts into sets of `rounds` times the concurrency.

    Every method runs one set before any runs the next: small enough that drift hits all alike, large enough that
    most of a set runs at the full concurrency.
    """
    size = concurrency * rounds
    return [list(prompts[start : start + size]) for start in range(0, len(prompts), size)]
