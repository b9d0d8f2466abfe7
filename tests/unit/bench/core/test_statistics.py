"""The arithmetic behind every published figure."""

import pytest

from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts, Spread, distinct_share, paired_ratio


def test_spread_is_median_and_extremes() -> None:
    assert Spread.of([3.0, 1.0, 10.0]) == Spread(3.0, 1.0, 10.0)


def test_pairing_by_repeat_cancels_drift_that_ratios_of_medians_would_keep() -> None:
    # The machine's speed halves between the repeats; the method is twice as fast in each.
    assert paired_ratio([400.0, 200.0, 100.0], [200.0, 100.0, 50.0]) == Spread(2.0, 2.0, 2.0)


def test_pairing_refuses_unequal_numbers_of_repeats() -> None:
    with pytest.raises(ValueError, match="shorter"):
        paired_ratio([1.0, 2.0], [1.0])


def test_acceptance_divides_each_position_by_the_drafts_that_reached_it() -> None:
    # 100 drafts of one token and 100 of three: position 2 was drafted 100 times, not 200.
    counts = DraftCounts(100, (100,), (80,)) + DraftCounts(100, (100, 100, 100), (80, 50, 20))
    assert counts.acceptance_by_position == (0.8, 0.5, 0.2)
    assert counts.acceptance_length == pytest.approx(1 + 230 / 200)
    assert counts.depth_effective == pytest.approx(2.0)


def test_a_difference_of_counts_leaves_what_came_between() -> None:
    before, between = DraftCounts(5, (5, 5), (4, 1)), DraftCounts(2, (2, 2), (1, 1))
    assert (before + between) - before == between


def test_what_was_never_verified_has_no_acceptance() -> None:
    assert NO_DRAFTS.acceptance_length is None
    assert NO_DRAFTS.depth_effective is None
    assert NO_DRAFTS.acceptance_by_position == ()
    assert DraftCounts(2, (2, 0), (1, 0)).acceptance_by_position == (0.5,)


def test_a_loop_has_few_distinct_grams_and_text_has_many() -> None:
    loop, text = [1, 2, 3, 4] * 32, list(range(128))
    assert distinct_share(loop, 8) == pytest.approx(4 / 121)
    assert distinct_share(text, 8) == 1.0
    assert distinct_share(loop) == pytest.approx(4 / 128)


def test_an_output_shorter_than_the_gram_does_not_count_as_a_loop() -> None:
    assert distinct_share([1, 1, 1], 8) == 1.0
