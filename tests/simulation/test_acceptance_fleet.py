"""Dispatch by acceptance, evaluated on fleets of drafting replicas; see `support.depth.acceptance_fleet`."""

from support.depth.acceptance_fleet import BY_ACCEPTANCE, compared, served


def test_fleets_that_serve_code_and_noise_yield_more_at_no_later_first_token() -> None:
    tokens_ratio, ttft_ratio = compared("120B-H200", 2, 16, BY_ACCEPTANCE)
    assert tokens_ratio >= 1.04
    assert ttft_ratio <= 1.05


def test_a_run_repeats_exactly() -> None:
    assert served("120B-H200", 2, 4, BY_ACCEPTANCE) == served("120B-H200", 2, 4, BY_ACCEPTANCE)
