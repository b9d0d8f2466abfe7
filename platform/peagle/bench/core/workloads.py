"""Prompts to measure with: held-out text that no part of the embedded model has seen."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeVar

from peagle.prompt_file import Prompt, in_chat_form, read_prompt_file

Item = TypeVar("Item")


def held_out_prompts() -> list[str]:
    """The held-out prompts shipped here, all of them plain text."""
    with as_file(files("peagle.bench") / "data" / "held_out.jsonl") as path:
        return [prompt for prompt in read_prompt_file(path) if isinstance(prompt, str)]


def read_prompts(path: Path | None, *, as_chat: bool) -> list[Prompt]:
    """Prompts from a file, else those shipped here. Raises ConfigError where the file holds none."""
    if path is not None:
        return read_prompt_file(path, as_chat=as_chat)
    return [in_chat_form(prompt) if as_chat else prompt for prompt in held_out_prompts()]


def prompt_sets(prompts: Sequence[Item], concurrency: int, rounds: int = 3) -> list[list[Item]]:
    """Split prompts into sets of `rounds` times the concurrency; too few to fill it once go into the set before.

    Every method runs one set before any runs the next: small enough that drift hits all alike, large enough that
    most of a set runs at the full concurrency.
    """
    size = concurrency * rounds
    starts = [start for start in range(0, len(prompts), size) if start == 0 or start + concurrency <= len(prompts)]
    return [list(prompts[start:end]) for start, end in zip(starts, [*starts[1:], len(prompts)], strict=True)]
