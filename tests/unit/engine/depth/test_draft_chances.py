import random
from itertools import pairwise

import pytest

from peagle.engine.depth.draft_chances import DraftChances

DEPTH_MAX = 7


def checked(chances: DraftChances, request_id: str, confidence: list[float] | None, right: int, drafted: int) -> None:
    chances.learn(request_id, confidence, 0, drafted, right)


def test_a_drafter_is_believed_until_it_has_been_checked() -> None:
    chances = DraftChances(DEPTH_MAX)
    assert chances.survival("a", 2, [0.55, 0.25]) == pytest.approx([0.55, 0.55 * 0.25])
    for _ in range(500):
        checked(chances, "a", [0.55], 0, 1)
    assert chances.survival("a", 1, [0.55])[0] < 0.02
    assert chances.survival("a", 1, [0.95])[0] > 0.9  # another confidence
    assert chances.survival("a", 2, [0.95, 0.55])[1] > 0.5  # another position


@pytest.mark.parametrize("seed", range(3))
def test_it_learns_what_a_confidence_is_worth_whatever_was_verified(seed: int) -> None:
    """The drafter says 0.75 but is right in 0.6, and 0.35 but 0.5; cut drafts are scored by the tokens that follow."""
    rng, chances = random.Random(seed), DraftChances(DEPTH_MAX)
    worth = {0.75: 0.6, 0.35: 0.5}
    for _ in range(4000):
        confidence = [rng.choice([*worth]) for _ in range(4)]
        right = 0
        while right < 4 and rng.random() < worth[confidence[right]]:
            right += 1
        verified = sum(1 for sure in confidence if sure == 0.75)
        chances.learn("a", confidence, 0, verified, min(right, verified))
        chances.learn("a", confidence, verified, 4, right)
    for sure, share in worth.items():
        assert chances.survival("a", 1, [sure])[0] == pytest.approx(share, abs=0.05)
        assert chances.survival("a", 2, [0.75, sure])[1] == pytest.approx(0.6 * share, abs=0.05)


def test_without_a_confidence_a_request_is_known_by_its_own_misses() -> None:
    rng, chances = random.Random(0), DraftChances(DEPTH_MAX)
    for _ in range(300):
        for request, share in (("code", 0.9), ("noise", 0.3)):
            right = 0
            while right < 5 and rng.random() < share:
                right += 1
            checked(chances, request, None, right, 5)
    code, noise, new = (chances.survival(each, 3, None) for each in ("code", "noise", "new"))
    assert code[0] > 0.8
    assert noise[0] < 0.45
    assert noise[0] < new[0] < code[0]
    assert all(later <= earlier for each in (code, noise, new) for earlier, later in pairwise(each))
    chances.forget("code")
    assert chances.survival("code", 3, None) == new
    assert len(chances) == 1


def test_it_follows_a_request_that_changes() -> None:
    chances = DraftChances(DEPTH_MAX)
    for request, right in (("a", 5), ("b", 1)):
        for _ in range(100):
            checked(chances, request, None, right, 5)
    before = chances.survival("a", 1, None)[0]
    for _ in range(40):
        checked(chances, "a", None, 0, 5)
    assert chances.survival("a", 1, None)[0] < before - 0.3


def test_the_past_is_bounded_so_that_a_drafter_whose_confidence_misleads_is_found_out() -> None:
    chances = DraftChances(DEPTH_MAX)
    for _ in range(50_000):
        checked(chances, "a", [1.0] * 7, 7, 7)
    assert chances.survival("a", 7, [1.0] * 7)[-1] > 0.95
    for _ in range(1500):
        checked(chances, "a", [1.0] * 7, 0, 7)
    assert chances.survival("a", 1, [1.0])[0] < 0.5
