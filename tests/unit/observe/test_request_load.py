"""The load generator: the requested number of requests, at times fixed by a seed, with every end counted."""

import io
import json
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from peagle.errors import ConfigError
from peagle.observe.request_load import Sent, arrivals, parse_rates, send_all, summary


@given(st.lists(st.sampled_from((0.0, 1.0, 20.0)), min_size=1, max_size=4), st.integers(0, 100))
def test_arrivals_come_in_order_each_within_its_phase(rates: list[float], seed: int) -> None:
    times = arrivals(rates, 30.0, seed)
    assert times == sorted(times) == arrivals(rates, 30.0, seed)
    for index, rate in enumerate(rates):
        number = sum(index * 30.0 <= at < (index + 1) * 30.0 for at in times)
        # Six standard deviations of a Poisson count.
        assert abs(number - 30.0 * rate) <= 6 * (30.0 * rate) ** 0.5


@pytest.mark.parametrize("wrong", ["", "a", "1,", "-1", "nan", "1e9"])
def test_rates_that_are_none_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError):
        parse_rates(wrong)


def stream(*events: str) -> httpx.Response:
    return httpx.Response(200, text="".join(f"data: {event}\n\n" for event in events))


TOKEN = json.dumps({"choices": [{"text": "a"}]})
USAGE = json.dumps({"choices": [], "usage": {"completion_tokens": 7}})


@pytest.mark.parametrize(
    ("answer", "status", "tokens", "whole", "spoke"),
    [
        (lambda _: stream(TOKEN, USAGE, "[DONE]"), 200, 7, True, True),
        (lambda _: stream(TOKEN, json.dumps({"error": {"message": "lost"}})), 200, 0, False, True),
        (lambda _: httpx.Response(429, json={"error": {}}), 429, 0, False, False),
    ],
    ids=["whole", "broken", "shed"],
)
async def test_a_request_is_judged_by_how_it_ends(
    answer: Callable[[httpx.Request], httpx.Response], status: int, tokens: int, whole: bool, spoke: bool
) -> None:
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://test") as client:
        (sent,) = await send_all(client, {"model": "m"}, [0.0], seed=0)
    assert (sent.status, sent.tokens, sent.whole, sent.ttft_s is not None) == (status, tokens, whole, spoke)


async def test_a_server_that_is_gone_fails_the_request_and_not_the_run() -> None:
    def gone(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    async with httpx.AsyncClient(transport=httpx.MockTransport(gone), base_url="http://test") as client:
        sent = await send_all(client, {}, [0.0, 0.01], seed=0)
    assert [each.status for each in sent] == [0, 0]


def test_the_summary_counts_each_request_once() -> None:
    console = Console(width=200, file=io.StringIO(), record=True)
    rows = [Sent(200, 1.0, 0.1, 50, True), Sent(200, 1.0, 0.1, 10), Sent(429, 0.1), Sent(0, 0.1)]
    console.print(summary(rows, 10.0))
    line = next(line for line in console.export_text().splitlines() if "0.100 s" in line)
    assert [cell.strip() for cell in line.strip("│ ").split("│")][:4] == ["4", "1", "1", "2"]
