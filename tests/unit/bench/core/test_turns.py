"""The order of a comparison, on generators without vLLM."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from peagle.bench.core.closed_loop import Trace
from peagle.bench.core.records import PassKey, Run
from peagle.bench.core.statistics import NO_DRAFTS
from peagle.bench.core.turns import assemble, in_turn, planned_passes, rotated, warmup_passes
from peagle.bench.core.workloads import prompt_sets
from peagle.bench.engines.engine_plan import Variant
from peagle.bench.engines.speculation import one_pass
from support.engines.generator_engine import OUTPUT_TOKENS, Generator

NONE, SHALLOW, DEEP = Variant(0, "none", 0), Variant(1, "p-eagle", 2), Variant(1, "p-eagle", 4)
VARIANTS = [NONE, SHALLOW, DEEP]


async def compared(prompts: int, concurrencies: Sequence[int], repeats: int, warmup: int) -> tuple[Any, ...]:
    log: list[tuple[str, int]] = []
    begun: list[str] = []
    engines: list[Any] = [Generator(log, "none"), Generator(log, "p-eagle")]
    tokens = [[number + 1] for number in range(prompts)]
    planned = planned_passes(VARIANTS, tokens, concurrencies, repeats)
    first = warmup_passes(VARIANTS, tokens, planned, warmup)
    made: dict[PassKey, Run[Trace]] = {}

    async def make(variant: Variant, prompts: list[list[int]], concurrency: int) -> Run[Trace]:
        return await one_pass(engines[variant.engine], variant, prompts, concurrency)

    await in_turn(make, VARIANTS, tokens, warmup=first, todo=planned, begin=begun.append, keep=made.__setitem__)
    assert list(made) == planned
    assert len(log) == len(begun) == len(first) + len(planned)
    return assemble(VARIANTS, planned, made), log


async def test_every_variant_runs_a_prompt_set_before_any_runs_the_next() -> None:
    _, log = await compared(prompts=7, concurrencies=[1], repeats=2, warmup=0)
    rounds = [log[start : start + 3] for start in range(0, len(log), 3)]
    assert len(rounds) == 6
    assert all(sorted(turn) == [("none", 0), ("p-eagle", 2), ("p-eagle", 4)] for turn in rounds)
    assert len({turn[0] for turn in rounds}) == 3


async def test_each_repeat_of_a_cell_holds_every_prompt_once_in_order() -> None:
    runs, _ = await compared(prompts=7, concurrencies=[1, 2], repeats=2, warmup=1)
    assert set(runs) == {(variant, level) for variant in (NONE, SHALLOW, DEEP) for level in (1, 2)}
    for cell in runs.values():
        assert [[trace.tokens[0] for trace in run.traces] for run in cell] == [list(range(1, 8))] * 2
        assert all(run.output_tokens_per_s > 0 for run in cell)


async def test_drafts_are_credited_to_the_depth_that_was_set_when_they_were_verified() -> None:
    runs, _ = await compared(prompts=3, concurrencies=[1], repeats=1, warmup=1)
    steps = 3 * OUTPUT_TOKENS
    assert runs[NONE, 1][0].counts == NO_DRAFTS
    assert runs[SHALLOW, 1][0].counts.drafted[:2] == (steps, steps)
    assert runs[SHALLOW, 1][0].counts.depth_effective == 2
    assert runs[DEEP, 1][0].counts.depth_effective == 4
    assert runs[DEEP, 1][0].counts.accepted == (steps, 0, 0, 0)
    assert {cell[0].steps for cell in runs.values()} == {steps}


def test_only_concurrencies_with_passes_left_are_warmed_up() -> None:
    prompts = [[number] for number in range(7)]
    planned = planned_passes(VARIANTS, prompts, [1, 2], repeats=2)
    left = [key for key in planned if key.concurrency == 2]
    assert {key.concurrency for key in warmup_passes(VARIANTS, prompts, left, sets=1)} == {2}
    assert warmup_passes(VARIANTS, prompts, [], sets=1) == []
    again = warmup_passes(VARIANTS[:1], prompts, left, sets=len(prompt_sets(prompts, 2)) + 1)
    assert [key.prompt_set for key in again] == [*range(len(again) - 1), 0]


@given(st.data())
def test_runs_are_the_same_in_whatever_order_their_passes_were_made(data: st.DataObject) -> None:
    prompts = [[number] for number in range(5)]
    planned = planned_passes(VARIANTS, prompts, [1, 2], repeats=2)
    made = {key: Run(1.0 + number, number, (Trace((number,), (0.1,)),)) for number, key in enumerate(planned)}
    shuffled = {key: made[key] for key in data.draw(st.permutations(planned))}
    assert assemble(VARIANTS, planned, shuffled) == assemble(VARIANTS, planned, made)


def test_every_variant_leads_once_in_as_many_turns() -> None:
    variants = [Variant(0, "none", 0), Variant(1, "p-eagle", 3), Variant(1, "p-eagle", 7)]
    assert {rotated(variants, turn)[0] for turn in range(3)} == set(variants)
    assert all(sorted(map(str, rotated(variants, turn))) == sorted(map(str, variants)) for turn in range(5))
