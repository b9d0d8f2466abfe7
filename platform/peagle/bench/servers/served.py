"""Passes over servers from the client's side: selection of prompts, and results."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from peagle.bench.core.journal import Journal
from peagle.bench.core.records import PassKey, Run, without
from peagle.bench.core.session import Job
from peagle.bench.servers.completions import Reply
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal
from peagle.prompt_file import Prompt

CLIENT = "client"


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The chosen prompts, their token counts, and the number of examined prompts."""

    prompts: tuple[Prompt, ...]
    tokens: tuple[int, ...]
    examined: int
    too_long: int


@dataclass(frozen=True, slots=True)
class ChosenTexts:
    """The journal line of the prompts."""

    texts: PromptTexts
    kind: Literal["texts"] = "texts"

    def enter(self, journal: Journal) -> None:
        journal.chosen = self.texts


@dataclass(frozen=True, slots=True)
class ServedPass:
    """The journal line of one pass."""

    key: PassKey
    made: Annotated[Run[Reply], without("steps", "depth_changes")]
    kind: Literal["served"] = "served"

    def enter(self, journal: Journal) -> None:
        journal.made[self.key] = self.made


async def select_texts(
    texts: Sequence[Prompt], wanted: int, output_tokens: int, count: Callable[[Prompt], Awaitable[tuple[int, int]]]
) -> PromptTexts:
    """Choose the first `wanted` prompts that fit the context; `count` returns a prompt's tokens and the context length.

    Raises ConfigError if there are not enough.
    """
    chosen: list[Prompt] = []
    lengths: list[int] = []
    examined = too_long = 0
    for text in texts:
        if len(chosen) == wanted:
            break
        examined += 1
        tokens, fits = await count(text)
        if tokens + output_tokens > fits:
            too_long += 1
        elif text not in chosen:
            chosen.append(text)
            lengths.append(tokens)
    if len(chosen) < wanted:
        problem = f"only {len(chosen)} of {examined} different prompts qualify: {too_long} are too long"
        raise ConfigError("--prompts", wanted, problem, "Lower it, lower --tokens, or add prompts.")
    return PromptTexts(tuple(chosen), tuple(lengths), examined, too_long)


async def choose_texts(
    job: Job, journal: Journal, terminal: Terminal, count: Callable[[Prompt], Awaitable[tuple[int, int]]]
) -> None:
    """Record the prompts that fit the context in the journal, if it has none; see `select_texts`."""
    if journal.chosen is None:
        with terminal.stage("Choose prompts"):
            chosen = await select_texts(job.texts, job.load.prompts, job.load.tokens, count)
            journal.keep(ChosenTexts(chosen))
