"""Which requests are within their client's limits, whichever ingress process receives them."""

import math

import pytest

from peagle.router.fairness.client_terms import Limits
from peagle.router.fairness.limit_book import GONE_AFTER_S, Ask, Held, Levels, LimitBook, LimitReport, Refusal, Verdict

UNKNOWN = Levels()


def asked(
    book: LimitBook,
    limits: Limits,
    tokens: int = 1,
    now_s: float = 0.0,
    ingress: str = "i",
    held: Held | None = None,
    returned: int = 0,
    known: Levels = UNKNOWN,
) -> Verdict:
    report = LimitReport(
        ingress,
        {} if held is None else {"c": held},
        {"c": returned} if returned else {},
        (Ask("c", limits, tokens, known),),
    )
    (verdict,) = book.exchange(report, now_s).verdicts
    return verdict


def test_a_client_without_limits_is_admitted_for_ever() -> None:
    book = LimitBook()
    assert all(asked(book, Limits(), 10**9) == Verdict(None, Levels()) for _ in range(100))


def test_requests_per_minute_are_counted_over_all_processes() -> None:
    book, limits = LimitBook(), Limits(requests_per_minute=3)
    assert [asked(book, limits, ingress=name).refusal for name in "aba"] == [None] * 3
    assert asked(book, limits, ingress="b").refusal == Refusal("requests_per_minute", 3, 1, 20.0)
    assert asked(book, limits, now_s=19.9).refusal is not None
    assert asked(book, limits, now_s=20.0) == Verdict(None, Levels(requests=0.0))


def test_expected_tokens_are_charged_and_corrected() -> None:
    book, limits = LimitBook(), Limits(tokens_per_minute=100)
    assert asked(book, limits, 80).levels == Levels(tokens=20)
    assert asked(book, limits, 30).refusal == Refusal("tokens_per_minute", 100, 30, 6.0)
    assert asked(book, limits, 30, returned=60).levels == Levels(tokens=50)
    # More tokens were used than expected, which leaves a debt.
    assert asked(book, limits, 1, returned=-90).refusal == Refusal("tokens_per_minute", 100, 1, pytest.approx(24.6))


@pytest.mark.parametrize("limits", [Limits(tokens_per_minute=100), Limits(tokens_waiting=100)])
def test_a_request_that_alone_exceeds_a_limit_is_refused_for_good(limits: Limits) -> None:
    refusal = asked(LimitBook(), limits, 101).refusal
    assert refusal is not None
    assert refusal.retry_after_s == math.inf


def test_a_refused_request_takes_nothing() -> None:
    book = LimitBook()
    limits = Limits(requests_per_minute=60, tokens_per_minute=100)
    assert asked(book, limits, 101).levels == Levels(60, 100)


def test_requests_at_once_are_those_open_in_all_processes() -> None:
    book, limits = LimitBook(), Limits(requests_at_once=3)
    assert asked(book, limits, ingress="a").refusal is None
    assert asked(book, limits, ingress="a", held=Held(1, 1)).refusal is None
    assert asked(book, limits, ingress="b").refusal is None
    assert asked(book, limits, ingress="b", held=Held(1, 1)).refusal == Refusal("requests_at_once", 3, 1, None)
    # One request of the first process has ended.
    book.exchange(LimitReport("a", {"c": Held(1)}, {}), 0.1)
    assert asked(book, limits, ingress="b", held=Held(1, 1)).refusal is None


def test_a_burst_in_one_report_is_not_admitted_whole() -> None:
    ask = Ask("c", Limits(requests_at_once=2), 1)
    verdicts = LimitBook().exchange(LimitReport("a", {}, {}, (ask,) * 5), 0.0).verdicts
    assert [verdict.refusal is None for verdict in verdicts] == [True, True, False, False, False]


def test_tokens_wait_until_their_request_s_answer_begins() -> None:
    book, limits = LimitBook(), Limits(tokens_waiting=100)
    assert asked(book, limits, 60).refusal is None
    assert asked(book, limits, 60, held=Held(1, 60)).refusal == Refusal("tokens_waiting", 100, 60, None)
    assert asked(book, limits, 60, held=Held(1, 0)).refusal is None


def test_requests_held_by_a_lost_process_are_freed() -> None:
    book, limits = LimitBook(), Limits(requests_at_once=1)
    assert asked(book, limits, ingress="a").refusal is None
    assert asked(book, limits, ingress="b", now_s=GONE_AFTER_S).refusal is not None
    assert asked(book, limits, ingress="b", now_s=GONE_AFTER_S + 0.1).refusal is None


def test_reporting_processes_are_counted() -> None:
    book = LimitBook()
    counts = [book.exchange(LimitReport(name, {}, {}), at_s).ingresses for name, at_s in (("a", 0), ("b", 1), ("b", 9))]
    assert counts == [1, 2, 1]


def test_a_new_book_continues_from_the_levels_that_processes_know() -> None:
    limits = Limits(requests_per_minute=60, tokens_per_minute=600)
    assert asked(LimitBook(), limits, 10, known=Levels(5.0, 50.0)).levels == Levels(4.0, 40.0)
    refusal = asked(LimitBook(), limits, 10, known=Levels(0.0, 50.0)).refusal
    assert refusal is not None
    assert refusal.limit == "requests_per_minute"


def test_limits_that_change_count_at_once_and_nothing_used_is_forgotten() -> None:
    book = LimitBook()
    assert asked(book, Limits(tokens_per_minute=100), 90).levels == Levels(tokens=10)
    assert asked(book, Limits(tokens_per_minute=200), 50).levels == Levels(tokens=60)
    assert asked(book, Limits(), 50).levels == Levels()


def test_an_account_that_is_not_yet_refilled_is_kept() -> None:
    book, limits = LimitBook(), Limits(requests_per_minute=2)
    for at_s in (0.0, 1.0):
        assert asked(book, limits, now_s=at_s).refusal is None
    book.exchange(LimitReport("i", {}, {}), 59.9)
    assert asked(book, limits, now_s=59.95).levels == Levels(requests=pytest.approx(0.998, abs=0.001))


def test_a_share_of_a_limit_is_at_least_one() -> None:
    assert Limits(5, None, 1, 9).share(2) == Limits(2, None, 1, 4)
