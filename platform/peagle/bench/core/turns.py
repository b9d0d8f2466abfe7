"""Order of passes: interleaved over the same prompts, so that drift of the machine affects all variants equally."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, TypeVar

from peagle.bench.core.records import Answer, Named, PassKey, Run, Variant
from peagle.bench.core.workloads import prompt_sets

T = TypeVar("T")


def rotated(variants: Sequence[T], turn: int) -> list[T]:
    """Return the variants rotated by `turn`, so that none is always first."""
    start = turn % len(variants)
    return [*variants[start:], *variants[:start]]


def planned_passes(
    variants: Sequence[Named], prompts: Sequence[Any], concurrencies: Sequence[int], repeats: int
) -> list[PassKey]:
    """Return every measured pass in its order.

    All variants run a prompt set before any runs the next, in an order that rotates each time.
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
    """Return warm-up passes: `sets` prompt sets per variant and pending concurrency.

    The sets are repeated if there are fewer.
    """
    levels = dict.fromkeys(key.concurrency for key in todo)
    return [
        PassKey(0, level, number % len(prompt_sets(prompts, level)), variant.name)
        for level in levels
        for number in range(sets)
        for variant in variants
    ]


async def in_turn(
    make: Callable[[Variant, list[T], int], Awaitable[Run[Answer]]],
    variants: Sequence[Variant],
    prompts: Sequence[T],
    *,
    warmup: Sequence[PassKey],
    todo: Sequence[PassKey],
    begin: Callable[[str], None],
    keep: Callable[[PassKey, Run[Answer]], None],
) -> None:
    """Run the passes `warmup` without recording, then `todo`, and pass each result to `keep` at once.

    `begin` is called with the name of each pass when it begins, `make` with its variant, prompts and concurrency.
    """
    named = {variant.name: variant for variant in variants}

    async def made(key: PassKey) -> Run[Answer]:
        return await make(named[key.variant], prompt_sets(prompts, key.concurrency)[key.prompt_set], key.concurrency)

    for key in warmup:
        begin(f"warm-up, {key.variant}, {key.concurrency} at once")
        await made(key)
    for key in todo:
        begin(f"repeat {key.repeat + 1}, {key.variant}, {key.concurrency} at once")
        keep(key, await made(key))


def assemble(
    variants: Sequence[Variant], planned: Sequence[PassKey], made: Mapping[PassKey, Run[Answer]]
) -> dict[tuple[Variant, int], list[Run[Answer]]]:
    """Return the repeats of every cell, each with its passes in the order of the prompts.

    Raises KeyError if a planned pass is missing.
    """
    passes: dict[tuple[str, int, int], list[Run[Answer]]] = {}
    for key in planned:
        passes.setdefault((key.variant, key.concurrency, key.repeat), []).append(made[key])
    levels = dict.fromkeys(key.concurrency for key in planned)
    repeats = range(1 + max(key.repeat for key in planned))
    return {
        (variant, level): [reduce(add, passes[variant.name, level, repeat]) for repeat in repeats]
        for level in levels
        for variant in variants
    }
