"""Compare decoding methods: interleaved passes over the same prompts, so that a drifting machine hits all alike."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peagle.bench.load import Trace, run_pass
from peagle.bench.plan import NONE, Variant, rotated
from peagle.bench.statistics import NO_DRAFTS, DraftCounts, distinct_share
from peagle.bench.workloads import prompt_sets
from peagle.errors import ConfigError

if TYPE_CHECKING:
    from peagle.bench.engines import Engine

LOOP_GRAM_TOKENS = 8
"""A loop repeats long runs of tokens; code repeats short ones without looping."""


@dataclass(slots=True)
class Run:
    """One repeat of one cell: all prompts once."""

    seconds: float = 0.0
    traces: list[Trace] = field(default_factory=list)
    counts: DraftCounts = NO_DRAFTS

    @property
    def output_tokens_per_s(self) -> float:
        return sum(len(trace.tokens) for trace in self.traces) / self.seconds


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
    texts: Sequence[str], wanted: int, output_tokens: int, engine: "Engine", min_distinct_share: float | None
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


async def measure(
    engines: Sequence["Engine"],
    variants: Sequence[Variant],
    prompts: Sequence[list[int]],
    concurrencies: Sequence[int],
    *,
    repeats: int,
    warmup_sets: int,
    begin: Callable[[str], None],
) -> dict[Cell, list[Run]]:
    """Time every variant at every concurrency; `begin` is called with the name of each pass as that begins.

    All variants run a prompt set before any runs the next, in an order that moves on by one each time.
    """
    runs: dict[Cell, list[Run]] = {(variant, level): [] for variant in variants for level in concurrencies}
    turn = 0
    for level in concurrencies:
        sets = prompt_sets(prompts, level)
        for prompt_set in sets[:warmup_sets]:
            for variant in variants:
                begin(f"warm-up, {variant.name}, {level} at once")
                await _one_pass(engines[variant.engine], variant, prompt_set, level)
    for repeat in range(repeats):
        for level in concurrencies:
            for variant in variants:
                runs[variant, level].append(Run())
            for prompt_set in prompt_sets(prompts, level):
                for variant in rotated(variants, turn):
                    begin(f"repeat {repeat + 1} of {repeats}, {variant.name}, {level} at once")
                    run = runs[variant, level][repeat]
                    seconds, traces, counts = await _one_pass(engines[variant.engine], variant, prompt_set, level)
                    run.seconds += seconds
                    run.traces.extend(traces)
                    run.counts += counts
                turn += 1
    return runs


def passes(variants: int, prompts: Sequence[list[int]], concurrencies: Sequence[int], repeats: int, warmup: int) -> int:
    """How many passes `measure` makes."""
    sets = [len(prompt_sets(prompts, level)) for level in concurrencies]
    return variants * sum(repeats * count + min(warmup, count) for count in sets)


async def _one_pass(
    engine: "Engine", variant: Variant, prompts: Sequence[list[int]], concurrency: int
) -> tuple[float, tuple[Trace, ...], DraftCounts]:
    await engine.prepare(variant.depth)
    before = engine.counts()
    async with engine.adapting() if variant.adaptive else nullcontext():
        result = await run_pass(engine.stream, prompts, concurrency)
    await engine.settle()
    return result.seconds, result.traces, engine.counts() - before


def reference_variant(variants: Sequence[Variant]) -> Variant | None:
    """The variant without speculation, if it is measured."""
    return next((variant for variant in variants if variant.method == NONE), None)
