"""What a request's grammar takes of the processor, counted by token whatever K is."""

from time import sleep, thread_time
from typing import Any

import pytest

pytest.importorskip("vllm")

LIMIT_S = 0.01


def spend(seconds: float) -> None:
    until_s = thread_time() + seconds
    while thread_time() < until_s:
        pass


def followed(mask_s: float = 0.0, idle_s: float = 0.0) -> Any:
    """A watched grammar whose every mask takes so much processor time, and so much waiting."""
    from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

    from peagle.engine.grammars.watched_grammars import WatchedGrammar

    class Taking(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM ships no types
        def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
            return tokens != [9]

        def validate_tokens(self, tokens: list[int]) -> list[int]:
            return tokens[:5]

        def rollback(self, num_tokens: int) -> None:
            pass

        def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
            sleep(idle_s)
            spend(mask_s)
            bitmask[batch_index] = 7

        def is_terminated(self) -> bool:
            return True

        def reset(self) -> None:
            pass

    return WatchedGrammar(Taking(), LIMIT_S)


def step(grammar: Any, masks: int) -> bool:
    """One step of vLLM's with a mask for each draft and one more; whether the grammar is slow by then."""
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
    assert grammar.accept_tokens("request", [9]) is False
    assert grammar.validate_tokens([1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5]
    assert grammar.is_terminated() is True


def test_a_grammar_is_slow_at_its_second_slow_step() -> None:
    grammar = followed(mask_s=1.5 * LIMIT_S)
    assert [step(grammar, 1) for _ in range(3)] == [False, True, True]


def test_many_drafts_make_no_slow_grammar() -> None:
    grammar = followed(mask_s=0.2 * LIMIT_S)
    assert [step(grammar, 8) for _ in range(3)] == [False] * 3


def test_waiting_is_no_time_of_a_grammars() -> None:
    grammar = followed(idle_s=2 * LIMIT_S)
    assert [step(grammar, 1) for _ in range(3)] == [False] * 3


def test_of_a_grammar_that_takes_long_few_drafts_are_checked_and_one_always() -> None:
    grammar = followed(mask_s=0.3 * LIMIT_S)
    assert len(grammar.validate_tokens([1, 2, 3, 4, 5])) == 5
    step(grammar, 1)
    assert len(grammar.validate_tokens([1, 2, 3, 4, 5])) in (1, 2)
    slow = followed(mask_s=2 * LIMIT_S)
    step(slow, 1)
    assert slow.validate_tokens([1, 2, 3]) == [1]
