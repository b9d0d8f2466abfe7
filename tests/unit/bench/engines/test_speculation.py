"""Selection of prompts for a comparison of engines, on a generator without vLLM."""

from typing import Any

import pytest

from peagle.bench.engines.speculation import Selection, select_prompts
from peagle.errors import ConfigError
from support.engines.generator_engine import OUTPUT_TOKENS, Generator


async def test_prompts_that_lead_to_a_loop_or_do_not_fit_are_left_out_and_counted() -> None:
    engine: Any = Generator([], "none")
    prompts = [[1], [0], [5] * 30, [2], [3]]
    selection = await select_prompts(prompts, 2, OUTPUT_TOKENS, engine, min_distinct_share=0.9)
    assert selection.prompts == ([1], [2])
    assert (selection.examined, selection.looping, selection.too_long) == (4, 1, 1)


async def test_loops_are_kept_unless_asked_otherwise() -> None:
    engine: Any = Generator([], "none")
    selection = await select_prompts([[0], [1]], 2, OUTPUT_TOKENS, engine, min_distinct_share=None)
    assert (len(selection.prompts), selection.looping) == (2, 0)


async def test_too_few_prompts_are_refused_with_the_reason() -> None:
    engine: Any = Generator([], "none")
    with pytest.raises(ConfigError, match=r"only 1 of 2 prompts qualify: 0 are too long, 1 lead to a loop"):
        await select_prompts([[0], [1]], 2, OUTPUT_TOKENS, engine, min_distinct_share=0.9)


def test_a_mixture_replaces_every_second_prompt() -> None:
    code = Selection(([1], [2], [3]), examined=5, too_long=0, looping=2)
    noise = Selection(([7], [8]), examined=4, too_long=1, looping=1)
    mixed = code.mixed_with(noise)
    assert mixed == Selection(([1], [7], [3]), examined=9, too_long=1, looping=3)
