"""Passes over engines: selection of prompts, and each pass with its statistics."""

import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from peagle.bench.core.closed_loop import Trace, run_pass
from peagle.bench.core.journal import Journal
from peagle.bench.core.records import PassKey, Run, without
from peagle.bench.core.statistics import distinct_share
from peagle.bench.engines.engine_plan import Variant
from peagle.errors import ConfigError

if TYPE_CHECKING:
    from peagle.bench.engines.vllm_engines import Engine

LOOP_GRAM_TOKENS = 8
"""A loop repeats long runs of tokens; code repeats short ones without looping."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen prompts, as tokens, and the number of examined prompts."""

    prompts: tuple[list[int], ...]
    examined: int
    too_long: int
    looping: int

    @property
    def tokens(self) -> list[int]:
        """Number of tokens of each prompt."""
        return [len(prompt) for prompt in self.prompts]

    def mixed_with(self, other: "Selection") -> "Selection":
        """Return this selection with every second prompt replaced by one of `other`."""
        pairs = zip(self.prompts[::2], other.prompts, strict=False)
        return Selection(
            tuple(prompt for pair in pairs for prompt in pair)[: len(self.prompts)],
            self.examined + other.examined,
            self.too_long + other.too_long,
            self.looping + other.looping,
        )


@dataclass(frozen=True, slots=True)
class Selected:
    """The journal line of the selection."""

    selection: Selection
    kind: Literal["selection"] = "selection"

    def enter(self, journal: Journal) -> None:
        journal.chosen = self.selection


@dataclass(frozen=True, slots=True)
class EnginePass:
    """The journal line of one pass."""

    key: PassKey
    made: Annotated[Run[Trace], without("cpu_s")]
    kind: Literal["pass"] = "pass"

    def enter(self, journal: Journal) -> None:
        journal.made[self.key] = self.made


async def select_prompts(
    prompts: Iterable[list[int]], wanted: int, output_tokens: int, engine: "Engine", min_distinct_share: float | None
) -> Selection:
    """Choose the first `wanted` prompts that fit the context and, with a limit, whose output does not loop.

    Outputs for the loop check come from `engine`, which must not speculate, before anything is measured.

    Raises ConfigError if there are not enough.
    """
    chosen: list[list[int]] = []
    examined = too_long = looping = 0
    for tokens in prompts:
        if len(chosen) == wanted:
            break
        examined += 1
        if len(tokens) + output_tokens > engine.context_tokens:
            too_long += 1
            continue
        if min_distinct_share is not None:
            _, (answer,) = await run_pass(engine.stream, [tokens], 1)
            if distinct_share(answer.tokens, LOOP_GRAM_TOKENS) < min_distinct_share:
                looping += 1
                continue
        chosen.append(tokens)
    if len(chosen) < wanted:
        problem = f"only {len(chosen)} of {examined} prompts qualify: {too_long} are too long, {looping} lead to a loop"
        raise ConfigError("--prompts", wanted, problem, "Lower it, lower --tokens, or add prompts.")
    return Selection(tuple(chosen), examined, too_long, looping)


async def one_pass(engine: "Engine", variant: Variant, prompts: Sequence[list[int]], concurrency: int) -> Run[Trace]:
    """Time the prompts, with the engine at the variant's K or under the rule."""
    await engine.prepare(variant.depth)
    async with engine.adapting(variant.depth if variant.held else None) if variant.ruled else nullcontext():
        counts, steps = engine.counts(), engine.steps()
        started_s = time.monotonic()
        seconds, traces = await run_pass(engine.stream, prompts, concurrency)
        changes = engine.depth_changes(concurrency, started_s) if variant.ruled else 0
    await engine.settle()
    return Run(seconds, engine.steps() - steps, traces, counts=engine.counts() - counts, depth_changes=changes)
