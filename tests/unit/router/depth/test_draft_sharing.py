import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.router.depth.draft_sharing import depth_drafted, expected_right, shared

CONDITIONAL = st.lists(st.lists(st.floats(0.0, 1.0), max_size=7), min_size=1, max_size=6)


def survival(conditional: list[list[float]]) -> list[list[float]]:
    return [list(itertools.accumulate(each, lambda a, b: a * b)) for each in conditional]


@given(CONDITIONAL, st.integers(0, 50))
def test_sharing_maximises_the_expected_accepted_drafts(conditional: list[list[float]], drafts: int) -> None:
    chances = survival(conditional)
    depths = shared(chances, drafts)
    assert all(0 <= depth <= len(each) for depth, each in zip(depths, chances, strict=True))
    assert sum(depths) == min(drafts, sum(map(len, chances)))
    # Moving one draft from any request to any other gains nothing.
    for loses, gains in itertools.permutations(range(len(chances)), 2):
        if depths[loses] and depths[gains] < len(chances[gains]):
            assert chances[gains][depths[gains]] <= chances[loses][depths[loses] - 1] + 1e-12


def test_requests_that_are_alike_get_alike() -> None:
    assert shared([[0.8, 0.6, 0.5]] * 4, 8) == [2, 2, 2, 2]
    assert shared([[0.9, 0.8, 0.7], [0.3, 0.1, 0.0]], 4) == [3, 1]
    assert shared([[0.9], []], 4) == [1, 0]


@given(CONDITIONAL, st.integers(1, 7))
def test_shared_out_as_many_are_right_at_least_and_more_to_choose_from_is_no_worse(
    conditional: list[list[float]], depth: int
) -> None:
    chances = [each + [0.0] * (7 - len(each)) for each in survival(conditional)]
    equal, best = expected_right(chances, depth, 7)
    _, fewer = expected_right(chances, depth, depth)
    assert equal == pytest.approx(fewer)
    assert best >= equal - 1e-9


def test_more_is_drafted_than_is_verified_up_to_what_the_drafter_drafts() -> None:
    assert [depth_drafted(depth, 7) for depth in range(8)] == [0, 2, 4, 5, 6, 7, 7, 7]
