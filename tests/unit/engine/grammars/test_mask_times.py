"""When a grammar counts as slow, and how many of its drafts a step verifies."""

import pytest

from peagle.engine.grammars.mask_times import RECENT, drafts_within, is_slow

LIMIT_S = 0.05


@pytest.mark.parametrize(
    ("token_s", "expected"),
    [
        ([], False),
        ([0.01] * RECENT, False),
        ([LIMIT_S] * RECENT, False),
        ([0.01, 9.0, 0.01], False),
        ([0.06, 0.01, 0.01, 0.06], True),
        ([0.06, 0.07], True),
    ],
    ids=["new", "usual", "at the limit", "slow once", "slow twice", "becomes slow"],
)
def test_two_slow_steps_of_the_last_few_make_a_slow_grammar(token_s: list[float], expected: bool) -> None:
    assert is_slow(token_s, LIMIT_S) is expected


@pytest.mark.parametrize(
    ("token_s", "drafts"),
    [(LIMIT_S / 8, 7), (LIMIT_S / 4, 3), (LIMIT_S / 2, 1), (LIMIT_S, 1), (1.0, 1)],
)
def test_a_step_with_drafts_takes_no_longer_than_one_token_may(token_s: float, drafts: int) -> None:
    assert drafts_within(token_s, LIMIT_S) == drafts


def test_a_quick_grammar_leaves_out_no_draft() -> None:
    assert drafts_within(0.0, LIMIT_S) > 100
    assert drafts_within(20e-6, LIMIT_S) > 100
