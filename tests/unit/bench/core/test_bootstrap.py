"""Confidence interval of a ratio of medians: its invariants, and its error rate for equal speeds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.bench.core.bootstrap import CONFIDENCE, MIN_REPEATS, RatioInterval, Verdict, ratio_of_medians

SPEEDS = st.lists(st.floats(1.0, 1e4), min_size=1, max_size=12)


@settings(max_examples=30, deadline=None)
@given(SPEEDS, SPEEDS)
def test_the_interval_is_ordered_and_within_what_the_repeats_can_give(one: list[float], other: list[float]) -> None:
    found = ratio_of_medians(one, other)
    assert found.low <= found.high
    assert found.low >= min(one) / max(other) * (1 - 1e-9)
    assert found.high <= max(one) / min(other) * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(SPEEDS, SPEEDS, st.floats(0.1, 10.0))
def test_a_faster_clock_for_both_changes_nothing(one: list[float], other: list[float], factor: float) -> None:
    plain = ratio_of_medians(one, other)
    scaled = ratio_of_medians([factor * each for each in one], [factor * each for each in other])
    assert (scaled.ratio, scaled.low, scaled.high) == pytest.approx((plain.ratio, plain.low, plain.high))


@settings(max_examples=20, deadline=None)
@given(SPEEDS)
def test_a_measurement_cannot_be_told_from_itself(speeds: list[float]) -> None:
    assert ratio_of_medians(speeds, speeds).verdict(len(speeds)) == Verdict.UNKNOWN


def test_equal_speeds_are_called_different_no_more_often_than_promised() -> None:
    pairs = np.random.default_rng(3).normal(100.0, 3.0, (250, 2, MIN_REPEATS))
    wrong = [ratio_of_medians(one, other).verdict(MIN_REPEATS) != Verdict.UNKNOWN for one, other in pairs]
    assert sum(wrong) / len(wrong) <= 1 - CONFIDENCE


def test_a_clear_difference_is_seen_and_its_direction_named() -> None:
    fast, slow = [118.0, 120.0, 121.0, 119.0, 122.0], [100.0, 101.0, 99.0, 102.0, 98.0]
    assert ratio_of_medians(fast, slow).verdict(5) == Verdict.FASTER
    assert ratio_of_medians(slow, fast).verdict(5) == Verdict.SLOWER


def test_too_few_repeats_tell_nothing_however_clear_they_look() -> None:
    assert RatioInterval(2.0, 1.9, 2.1).verdict(MIN_REPEATS - 1) == Verdict.UNKNOWN
