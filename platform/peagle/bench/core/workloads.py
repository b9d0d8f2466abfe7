"""Prompts for measurements: held-out text that no part of the embedded model was trained on."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeVar

from peagle.prompt_file import Prompt, in_chat_form, read_prompt_file

Item = TypeVar("Item")


def held_out_prompts() -> list[str]:
    """Return the bundled held-out prompts, all plain text."""
    with as_file(files("peagle.bench") / "data" / "held_out.jsonl") as path:
        return [prompt for prompt in read_prompt_file(path) if isinstance(prompt, str)]


def read_prompts(path: Path | None, *, as_chat: bool) -> list[Prompt]:
    """Return prompts from a file, or the bundled ones. Raises ConfigError if the file has none."""
    if path is not None:
        return read_prompt_file(path, as_chat=as_chat)
    return [in_chat_form(prompt) if as_chat else prompt for prompt in held_out_prompts()]


def prompt_sets(prompts: Sequence[Item], concurrency: int, rounds: int = 3) -> list[list[Item]]:
    """Split prompts into sets of `rounds` times the concurrency; a remainder below it joins the previous set.

    Every method runs one set before any runs the next: small enough that drift affects all equally, large enough that
    most of a set runs at full concurrency.
    """
    size = concurrency * rounds
    starts = [start for start in range(0, len(prompts), size) if start == 0 or start + concurrency <= len(prompts)]
    return [list(prompts[start:end]) for start, end in zip(starts, [*starts[1:], len(prompts)], strict=True)]
