"""Processor time of a request's grammar per token, independent of K, and the end of a request above the limit."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from pathlib import Path
from time import sleep, thread_time
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.engine.grammars.mask_times import SLOW_GRAMMAR
from support.engines.scheduler_core import Core, add, expected, scheduler_of
from support.waiting import eventually

pytest.importorskip("vllm")

LIMIT_S = 0.01


def spend(seconds: float) -> None:
    until_s = thread_time() + seconds
    while thread_time() < until_s:
        pass


def grammar_of(mask_s: Iterator[float], idle_s: float = 0.0) -> Any:
    """Return a grammar whose masks take this processor time, one after another, and this waiting time."""
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

    class Taking(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM ships no types
        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            return tokens != [99]

        def validate_tokens(self, tokens: list[int]) -> list[int]:
            return tokens[:5]

        def rollback(self, num_tokens: int) -> None:
            pass

        def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
            sleep(idle_s)
            spend(next(mask_s))
            bitmask[batch_index] = 7

        def is_terminated(self) -> bool:
            return False

        def reset(self) -> None:
            pass

    return Taking()


def followed(mask_s: float = 0.0, idle_s: float = 0.0) -> Any:
    """Return a watched grammar whose every mask takes this long."""
    from peagle.engine.grammars.watched_grammars import WatchedGrammar

    return WatchedGrammar(grammar_of(repeat(mask_s), idle_s), LIMIT_S)


def step(grammar: Any, masks: int) -> bool:
    """Run one vLLM step with a mask for each draft and one more; return whether the grammar is slow afterwards."""
    for index in range(masks):
        grammar.fill_bitmask([0] * masks, index)
        grammar.accept_tokens("request", [1])
    grammar.rollback(masks)
    return bool(grammar.is_slow_after_step())


def test_it_answers_as_the_grammar_behind_it() -> None:
    grammar, mask = followed(), [0, 0]
    grammar.fill_bitmask(mask, 1)
    assert mask == [0, 7]
    assert grammar.accept_tokens("request", [1]) is True
    assert grammar.accept_tokens("request", [99]) is False
    assert grammar.validate_tokens([1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5]
    assert grammar.is_terminated() is False


def test_a_grammar_is_slow_at_the_second_step_that_is_slow_by_the_processors_clock() -> None:
    """The step before these was slow by wall clock."""
    grammar = followed(mask_s=1.5 * LIMIT_S)
    assert [step(grammar, 1) for _ in range(4)] == [False, False, True, True]


def test_many_drafts_make_no_slow_grammar() -> None:
    grammar = followed(mask_s=0.2 * LIMIT_S)
    assert [step(grammar, 8) for _ in range(3)] == [False] * 3


def test_waiting_does_not_count_as_grammar_time() -> None:
    grammar = followed(idle_s=2 * LIMIT_S)
    assert [step(grammar, 1) for _ in range(3)] == [False] * 3


def test_of_a_grammar_that_takes_long_few_drafts_are_checked_and_one_always() -> None:
    grammar = followed(mask_s=0.3 * LIMIT_S)
    assert len(grammar.validate_tokens([1, 2, 3, 4, 5])) == 5
    step(grammar, 1)
    step(grammar, 1)
    assert len(grammar.validate_tokens([1, 2, 3, 4, 5])) in (1, 2)
    slow = followed(mask_s=2 * LIMIT_S)
    step(slow, 1)
    step(slow, 1)
    assert slow.validate_tokens([1, 2, 3]) == [1]


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("is_live", [False, True], ids=["static", "live"])
def test_a_request_with_a_slow_grammar_ends_and_the_others_go_on(folder: Path, overlapped: bool, is_live: bool) -> None:
    import torch
    from vllm.sampling_params import StructuredOutputsParams

    scheduler = scheduler_of(folder, overlapped, blocks=200, is_live=is_live)
    core, manager = Core(scheduler, overlapped, random.Random(1)), scheduler.structured_output_manager
    texts = {"slow": 100, "quick": 60, "plain": 60}
    masks = {"slow": chain(repeat(0.0, 60), repeat(0.06)), "quick": repeat(0.0)}
    manager.backend = SimpleNamespace(
        compile_grammar=lambda _, text, **__: grammar_of(masks[text]),
        allocate_token_bitmask=lambda rows: torch.zeros((rows, 2), dtype=torch.int32),
    )
    with ThreadPoolExecutor(1) as manager.executor:
        for request_id, tokens in texts.items():
            outputs = StructuredOutputsParams(grammar=request_id) if request_id in masks else None
            request = add(core, request_id, [1, 2, 3], tokens, [], structured_outputs=outputs)
            manager.grammar_init(request)
            if outputs is not None:
                eventually(lambda asked=request.structured_output_request: asked.is_grammar_ready)
        while core.busy():
            core.step()
    assert core.ended == {"slow": ("error", SLOW_GRAMMAR), "quick": ("length", None), "plain": ("length", None)}
    for request_id, tokens in texts.items():
        text = expected([1, 2, 3], tokens, [])
        emitted = core.emitted[request_id]
        assert emitted == (text[: len(emitted)] if request_id == "slow" else text)
    assert 5 < len(core.emitted["slow"]) < 100
    assert not scheduler.requests
