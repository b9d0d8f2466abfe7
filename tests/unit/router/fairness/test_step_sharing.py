"""Shares of steps, over simulated engines that compute the chosen requests."""

from collections import Counter

import pytest

from peagle.router.fairness.step_sharing import BURST_STEPS, HELD_S, Flow, Shares, StepShares, Work

A, B, C = Flow("a"), Flow("b"), Flow("c", weight=3.0)
BATCH = Flow("a", is_batch=True)


def entered(shares: StepShares, **flows: tuple[Flow, int, int]) -> list[Work]:
    """Return `count` requests of `tokens` each for every `(flow, count, tokens)`."""
    work = []
    for name, (flow, count, tokens) in flows.items():
        for index in range(count):
            shares.enter(flow)
            work.append(Work(f"{name}{index}", flow, tokens))
    return work


def served(shares: StepShares, work: list[Work], steps: int, most: int = 1000) -> Counter[Flow]:
    """Return tokens by flow over `steps` steps, in which no request arrives or ends."""
    tokens: Counter[Flow] = Counter()
    by_id = {each.request_id: each for each in work}
    for _ in range(steps):
        for request_id in shares.share(work, most).request_ids:
            each = by_id[request_id]
            shares.charge(each.flow, each.tokens)
            tokens[each.flow] += each.tokens
    return tokens


def test_a_single_client_is_not_limited() -> None:
    shares = StepShares(96)
    entered(shares, a=(A, 200, 8))
    assert not shares.are_needed(0.0)


def test_a_client_with_one_request_is_in_every_step_despite_one_with_many() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(A, 200, 8), b=(B, 1, 8))
    assert shares.are_needed(0.0)
    for _ in range(50):
        chosen = shares.share(work, 1000).request_ids
        assert "b0" in chosen
        assert len(chosen) == 12
        for each in work:
            if each.request_id in chosen:
                shares.charge(each.flow, each.tokens)


def test_a_clients_requests_are_served_in_order_of_arrival() -> None:
    shares = StepShares(32)
    work = entered(shares, a=(A, 10, 8), b=(B, 1, 8))
    assert shares.share(work, 1000).request_ids == ("b0", "a0", "a1", "a2")


@pytest.mark.parametrize("counts", [(100, 100), (200, 40), (40, 200)])
def test_tokens_are_proportional_to_weights(counts: tuple[int, int]) -> None:
    shares = StepShares(96)
    work = entered(shares, a=(A, counts[0], 8), c=(C, counts[1], 8))
    tokens = served(shares, work, 400)
    assert tokens[C] / tokens[A] == pytest.approx(3.0, rel=0.03)


def test_the_prompt_of_a_client_below_its_share_goes_first() -> None:
    shares = StepShares(96)
    many = entered(shares, a=(A, 50, 8))
    work = many + entered(shares, b=(B, 1, 500))
    assert shares.share(work, 1000).request_ids == ("b0",)


def test_a_long_prompt_is_computed_with_running_requests_over_several_steps() -> None:
    shares = StepShares(96)
    work = [*entered(shares, a=(A, 3, 8)), Work("prompt", A, 500, is_divisible=True)]
    assert shares.share(work, 1000) == Shares(("a0", "a1", "a2", "prompt"), 96)
    assert shares.share(work[3:], 1000) == Shares(("prompt",), 96)


@pytest.mark.parametrize("waits", [False, True])
def test_a_divided_prompt_takes_no_tokens_from_admitted_requests(waits: bool) -> None:
    shares = StepShares(96)
    entered(shares, a=(A, 1, 8), b=(B, 1, 8))
    new, prompt = Work("new", B, 30, is_divisible=True, waits=True), Work("prompt", A, 500, True, waits)
    shares.charge(A, 1)
    assert shares.share([prompt, new], 1000).request_ids == ("new",)


def test_a_flow_that_is_behind_catches_up_in_one_step() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(A, 50, 8), b=(B, 1, 8))
    served(shares, work, 100)
    shares.leave(B, 0.0)
    shares.enter(B)
    most = BURST_STEPS * 96
    assert shares.share([*work[:50], Work("b", B, most, True, True)], 1000) == Shares(("b",), most)
    shared = shares.share([*work[:50], Work("b", B, 2 * most, True, True)], 1000)
    assert shared.request_ids == ("b",)
    assert most <= shared.tokens <= most + 96


def test_an_indivisible_request_gets_a_step_of_its_size() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(A, 1, 500))
    assert shares.share(work, 1000) == Shares(("a0",), 500)


def test_a_long_prompt_gets_its_turn() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(A, 1, 8), b=(B, 1, 2048))
    tokens = served(shares, work, 2 * 2048 // 8)
    assert tokens[B] / tokens[A] == pytest.approx(1.0, rel=0.6)
    assert tokens[B] >= 2048


def test_the_batch_class_yields_and_does_not_starve() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(BATCH, 100, 8), b=(B, 100, 8))
    tokens = served(shares, work, 400)
    assert tokens[BATCH] / tokens[B] == pytest.approx(1 / 16, rel=0.1)


def test_the_batch_class_gets_unused_tokens() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(BATCH, 100, 8), b=(B, 1, 8))
    assert len(shares.share(work, 1000).request_ids) == 12


def test_an_idle_flow_saves_up_a_few_steps_at_most() -> None:
    for away in (True, False):
        shares = StepShares(8)
        work = entered(shares, a=(A, 1, 8), c=(C, 1, 8))
        if not away:
            shares.enter(B)
        served(shares, work, 1000)
        shares.enter(B)
        tokens = served(shares, [*work, Work("b", B, 8)], 500)
        assert 0 <= tokens[B] - tokens[A] <= (BURST_STEPS + 1) * 8


def test_the_batch_class_saves_nothing_up() -> None:
    shares = StepShares(96)
    work = entered(shares, b=(B, 50, 8), a=(BATCH, 1, 8))
    assert shares.share(work, 1000).request_ids[0] == "b0"


def test_a_flow_continues_after_a_short_pause() -> None:
    shares = StepShares(96)
    work = entered(shares, a=(A, 50, 8), b=(B, 1, 8))
    served(shares, work, 50)  # most of these steps went to the other flow
    shares.leave(B, 0.0)
    assert shares.are_needed(0.5)
    served(shares, work[:50], 10)
    shares.enter(B)
    for _ in range(5):
        assert "b" in shares.share([*work[:50], Work("b", B, 90)], 1000).request_ids
        shares.charge(B, 90)


def test_a_flow_that_has_just_asked_is_expected_again() -> None:
    shares = StepShares(96)
    entered(shares, a=(A, 2, 8), b=(B, 1, 8))
    shares.leave(B, 10.0)
    assert shares.are_needed(10.0 + 0.9 * HELD_S)
    assert not shares.are_needed(10.0 + HELD_S)


def test_a_step_has_no_more_requests_than_places() -> None:
    shares = StepShares(10_000)
    work = entered(shares, a=(A, 300, 8), b=(B, 300, 8))
    assert len(shares.share(work, 256).request_ids) == 256
