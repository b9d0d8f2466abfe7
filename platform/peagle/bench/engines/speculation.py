"""Compare decoding methods: interleaved passes over the same prompts, so that a drifting machine hits all alike."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from peagle.bench.core.closed_loop import Trace, run_pass
from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts, distinct_share
from peagle.bench.core.workloads import prompt_sets
from peagle.bench.engines.engine_plan import NONE, Variant, rotated
from peagle.errors import ConfigError
from peagle.prompt_file import Prompt

if TYPE_CHECKING:
    from peagle.bench.engines.vllm_engines import Engine

Made = TypeVar("Made")

LOOP_GRAM_TOKENS = 8
"""A loop repeats long runs of tokens; code repeats short ones without looping."""


class Named(Protocol):
    """What takes turns with others of its kind."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PassKey:
    """One measured pass: a prompt set through a variant (its name), at a concurrency, in a repeat; counted from 0."""

    repeat: int
    concurrency: int
    prompt_set: int
    variant: str


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """What one pass came to. `steps` are those of the engine that gave tokens; `depth_changes` those of K at the
    pass's concurrency, trials included.
    """

    seconds: float
    steps: int
    traces: tuple[Trace, ...]
    counts: DraftCounts
    depth_changes: int = 0


Passes = Mapping[PassKey, MeasuredPass]


@dataclass(slots=True)
class Run:
    """One repeat of one cell: all prompts once."""

    seconds: float = 0.0
    steps: int = 0
    traces: list[Trace] = field(default_factory=list)
    counts: DraftCounts = NO_DRAFTS
    depth_changes: int = 0

    @property
    def output_tokens_per_s(self) -> float:
        return sum(len(trace.tokens) for trace in self.traces) / self.seconds

    @property
    def step_s(self) -> float:
        """Wall-clock seconds for each step that gave tokens; prefill and what lies between two requests included."""
        return self.seconds / self.steps


Cell = tuple[Variant, int]
"""A variant at a concurrency."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Prompts that were chosen, as tokens, and how many had to be looked at for them."""

    prompts: tuple[list[int], ...]
    examined: int
    too_long: int
    looping: int


async def select_prompts(
    texts: Sequence[Prompt], wanted: int, output_tokens: int, engine: "Engine", min_distinct_share: float | None
) -> Selection:
    """Take the first `wanted` prompts that fit the context and, with a limit, whose output does not loop.

    Whether an output loops is asked of `engine`, which must not speculate, before anything is measured.

    Raises:
        ConfigError: There are not enough of them.
    """
    chosen: list[list[int]] = []
    examined = too_long = looping = 0
    for text in texts:
        if len(chosen) == wanted:
            break
        examined += 1
        tokens = engine.encode(text)
        if len(tokens) + output_tokens > engine.context_tokens:
            too_long += 1
            continue
        if min_distinct_share is not None:
            answer = (await run_pass(engine.stream, [tokens], 1)).traces[0].tokens
            if distinct_share(answer, LOOP_GRAM_TOKENS) < min_distinct_share:
                looping += 1
                continue
        chosen.append(tokens)
    if len(chosen) < wanted:
        problem = f"only {len(chosen)} of {examined} prompts do: {too_long} are too long, {looping} lead to a loop"
        raise ConfigError("--prompts", wanted, problem, "Ask for fewer, for fewer --tokens, or add prompts.")
    return Selection(tuple(chosen), examined, too_long, looping)


def planned_passes(
    variants: Sequence[Named], prompts: Sequence[Any], concurrencies: Sequence[int], repeats: int
) -> list[PassKey]:
    """Every measured pass in the order in which they are made.

    All variants run a prompt set before any runs the next, in an order that moves on by one each time.
    """
    keys: list[PassKey] = []
    for repeat in range(repeats):
        for level in concurrencies:
            for number in range(len(prompt_sets(prompts, level))):
                turn = len(keys) // len(variants)
                keys += [PassKey(repeat, level, number, variant.name) for variant in rotated(variants, turn)]
    return keys


def warmup_passes(
    variants: Sequence[Named], prompts: Sequence[Any], todo: Iterable[PassKey], sets: int
) -> list[PassKey]:
    """`sets` prompt sets through every variant, at each concurrency that has passes to make; from the first one again
    where there are fewer.
    """
    levels = dict.fromkeys(key.concurrency for key in todo)
    return [
        PassKey(0, level, number % len(prompt_sets(prompts, level)), variant.name)
        for level in levels
        for number in range(sets)
        for variant in variants
    ]


async def measure(
    engines: Sequence["Engine"],
    variants: Sequence[Variant],
    prompts: Sequence[list[int]],
    *,
    warmup: Sequence[PassKey],
    todo: Sequence[PassKey],
    begin: Callable[[str], None],
    keep: Callable[[PassKey, MeasuredPass], None],
) -> None:
    """Make the passes of these engines `in_turn`."""
    named = {variant.name: variant for variant in variants}

    async def make(key: PassKey) -> MeasuredPass:
        variant = named[key.variant]
        prompt_set = prompt_sets(prompts, key.concurrency)[key.prompt_set]
        return await _one_pass(engines[variant.engine], variant, prompt_set, key.concurrency)

    await in_turn(make, warmup=warmup, todo=todo, begin=begin, keep=keep)


async def in_turn(
    make: Callable[[PassKey], Awaitable[Made]],
    *,
    warmup: Sequence[PassKey],
    todo: Sequence[PassKey],
    begin: Callable[[str], None],
    keep: Callable[[PassKey, Made], None],
) -> None:
    """Make the passes `warmup` for nothing, then `todo`, each handed to `keep` as soon as it is made.

    `begin` is called with the name of each pass as that begins.
    """
    for key in warmup:
        begin(f"warm-up, {key.variant}, {key.concurrency} at once")
        await make(key)
    for key in todo:
        begin(f"repeat {key.repeat + 1}, {key.variant}, {key.concurrency} at once")
        keep(key, await make(key))


def assemble(variants: Sequence[Variant], planned: Sequence[PassKey], made: Passes) -> dict[Cell, list[Run]]:
    """The repeats of every cell, each with its passes in the order of the prompts, whenever they were made.

    Raises:
        KeyError: A planned pass has not been made.
    """
    levels = dict.fromkeys(key.concurrency for key in planned)
    repeats = 1 + max(key.repeat for key in planned)
    runs: dict[Cell, list[Run]] = {
        (each, level): [Run() for _ in range(repeats)] for level in levels for each in variants
    }
    named = {variant.name: variant for variant in variants}
    for key in planned:
        one, run = made[key], runs[named[key.variant], key.concurrency][key.repeat]
        run.seconds += one.seconds
        run.steps += one.steps
        run.traces.extend(one.traces)
        run.counts += one.counts
        run.depth_changes += one.depth_changes
    return runs


async def _one_pass(engine: "Engine", variant: Variant, prompts: Sequence[list[int]], concurrency: int) -> MeasuredPass:
    await engine.prepare(variant.depth)
    async with engine.adapting(variant.depth if variant.held else None) if variant.ruled else nullcontext():
        counts, steps = engine.counts(), engine.steps()
        started_s = time.monotonic()
        result = await run_pass(engine.stream, prompts, concurrency)
        changes = engine.depth_changes(concurrency, started_s) if variant.ruled else 0
    await engine.settle()
    return MeasuredPass(result.seconds, engine.steps() - steps, result.traces, engine.counts() - counts, changes)


def reference_variant(variants: Sequence[Variant]) -> Variant | None:
    """The variant without speculation, if it is measured."""
    return next((variant for variant in variants if variant.method == NONE), None)
