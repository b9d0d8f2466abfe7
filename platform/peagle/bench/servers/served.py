"""Passes over servers, as their clients see them: the prompts they are made with, and what they come to."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts
from peagle.bench.engines.speculation import PassKey
from peagle.bench.servers.completions import Reply
from peagle.errors import ConfigError
from peagle.prompt_file import Prompt

CLIENT = "client"


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """Prompts that were chosen, the tokens of each, and how many had to be looked at for them."""

    prompts: tuple[Prompt, ...]
    tokens: tuple[int, ...]
    examined: int
    too_long: int


@dataclass(frozen=True, slots=True)
class ServedPass:
    """What one pass came to: wall-clock seconds and an answer for each prompt.

    Of servers started here also CPU seconds by role, the client's too; of others the drafts that they verified.
    """

    seconds: float
    traces: tuple[Reply, ...]
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    counts: DraftCounts = NO_DRAFTS


async def select_texts(
    texts: Sequence[Prompt], wanted: int, output_tokens: int, count: Callable[[Prompt], Awaitable[tuple[int, int]]]
) -> PromptTexts:
    """Take the first `wanted` prompts that fit the context; `count` says a prompt's tokens, and how many fit.

    Raises:
        ConfigError: There are not enough of them.
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
        problem = f"only {len(chosen)} of {examined} different prompts do: {too_long} are too long"
        raise ConfigError("--prompts", wanted, problem, "Ask for fewer, for fewer --tokens, or add prompts.")
    return PromptTexts(tuple(chosen), tuple(lengths), examined, too_long)


@dataclass(slots=True)
class Run:
    """One repeat of one server at one concurrency: all prompts once."""

    seconds: float = 0.0
    traces: list[Reply] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    counts: DraftCounts = NO_DRAFTS

    @property
    def output_tokens(self) -> int:
        return sum(reply.tokens for reply in self.traces)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds

    def cpu_s_per_1000_tokens(self, role: str) -> float:
        return 1000 * self.cpu_s.get(role, 0.0) / self.output_tokens

    @property
    def server_cpu_s_per_1000_tokens(self) -> float:
        """Of all the server's processes."""
        return sum(self.cpu_s_per_1000_tokens(role) for role in self.cpu_s if role != CLIENT)


Cell = tuple[str, int]
"""A server's name, and a concurrency."""


def served_runs(
    servers: Sequence[str], planned: Sequence[PassKey], made: Mapping[PassKey, ServedPass]
) -> dict[Cell, list[Run]]:
    """The repeats of every server at every concurrency, in the order of the prompts, whenever they were made.

    Raises:
        KeyError: A planned pass has not been made.
    """
    levels = dict.fromkeys(key.concurrency for key in planned)
    repeats = 1 + max(key.repeat for key in planned)
    runs = {(name, level): [Run() for _ in range(repeats)] for level in levels for name in servers}
    for key in planned:
        one, run = made[key], runs[key.variant, key.concurrency][key.repeat]
        run.seconds += one.seconds
        run.traces.extend(one.traces)
        run.counts += one.counts
        for role, seconds in one.cpu_s.items():
            run.cpu_s[role] = run.cpu_s.get(role, 0.0) + seconds
    return runs
