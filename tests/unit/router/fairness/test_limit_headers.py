"""Headers of limits per minute, in OpenAI's format."""

import pytest

from peagle.router.fairness.client_terms import Limits
from peagle.router.fairness.limit_book import Levels
from peagle.router.fairness.limit_headers import NAMES, duration, limit_headers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.02, "20ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3661.25, "1h1m1.25s"),
    ],
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_client_without_limits_per_minute_has_no_headers() -> None:
    assert limit_headers(Limits(requests_at_once=1, tokens_waiting=1), Levels(), 0.0) == {}


def test_headers_show_the_remaining_amount_and_the_reset_time() -> None:
    headers = limit_headers(Limits(60, 6000), Levels(58.5, -10), 0.5)
    assert tuple(headers) == NAMES
    assert tuple(headers.values()) == ("60", "59", "1s", "6000", "40", "59.6s")


def test_a_client_without_requests_has_its_whole_limit_left() -> None:
    headers = limit_headers(Limits(requests_per_minute=60), Levels(), 0.0)
    assert tuple(headers.values()) == ("60", "60", "0s")
