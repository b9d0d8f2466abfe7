"""A limit per minute, as a bucket that holds one minute's worth."""

from hypothesis import given
from hypothesis import strategies as st

from peagle.router.fairness.rate_bucket import MINUTE_S, Bucket


def test_a_bucket_fills_at_its_rate_and_no_further_than_a_minute_s_worth() -> None:
    bucket = Bucket.full(60, 0.0).less(60)
    assert bucket.level == 0
    assert bucket.at(1.5).level == 1.5
    assert bucket.at(1000).level == 60
    assert bucket.at(-5).level == 0


def test_more_used_than_expected_is_a_debt_and_less_is_given_back() -> None:
    bucket = Bucket.full(60, 0.0).less(70)
    assert bucket.seconds_until(1) == 11
    assert bucket.less(-1000).level == 60


def test_what_was_used_stays_used_under_another_limit() -> None:
    used = Bucket.full(60, 0.0).less(50)
    assert used.limited_to(600).level == 550
    assert used.limited_to(20).level == -30


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 20)), max_size=200), st.integers(1, 100))
def test_no_period_admits_more_than_a_full_bucket_and_the_rate(asks: list[tuple[float, int]], per_minute: int) -> None:
    bucket, now_s, taken = Bucket.full(per_minute, 0.0), 0.0, 0
    for wait_s, amount in asks:
        now_s += wait_s
        bucket = bucket.at(now_s)
        if bucket.level >= amount:
            bucket, taken = bucket.less(amount), taken + amount
        assert taken <= per_minute * (1 + now_s / MINUTE_S) + 1e-6
