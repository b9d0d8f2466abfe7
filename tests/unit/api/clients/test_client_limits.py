"""Limits of several ingress processes and one Router in virtual time, with the Router and without."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

import pytest

from peagle.api.clients.client_limits import AGAIN_S, PATIENCE_S, PERIOD_S, ClientLimits
from peagle.api.clients.request_charge import Charge, Usage
from peagle.errors import LimitError
from peagle.router.fairness.client_terms import Client, Limits
from peagle.router.fairness.limit_book import FORGET_EVERY_S, LimitAnswer, LimitBook, LimitReport
from support.virtual_time import in_virtual_time, now_s

PROCESSES = 4


class Router:
    """Answers after some time; if it is lost, callers wait."""

    def __init__(self, seed: int = 0) -> None:
        self.book, self.lost, self._random = LimitBook(), False, random.Random(seed)
        self.asked = 0

    async def exchange(self, report: LimitReport) -> LimitAnswer:
        self.asked += 1
        await asyncio.sleep(self._random.uniform(0.001, 0.05))
        if self.lost:
            await asyncio.Event().wait()
        answer = self.book.exchange(report, now_s())
        await asyncio.sleep(self._random.uniform(0.001, 0.05))
        return answer


class Fleet:
    """Processes, each with its part of the accounting, and their admitted requests."""

    def __init__(self, limits: Limits, count: int = PROCESSES) -> None:
        self.client, self.router = Client("c", limits=limits), Router()
        self.processes = [ClientLimits() for _ in range(count)]
        self.admitted: list[float] = []
        self.refusals: list[LimitError] = []
        self.open = self.most_open = 0

    async def ask(self, process: int, seconds: float = 0.0, tokens: int = 10, used: int | None = None) -> None:
        limits, charge = self.processes[process], Charge(self.client, "m", 0, tokens)
        try:
            await limits.admit(charge, self.router.exchange)
        except LimitError as error:
            self.refusals.append(error)
            return
        self.admitted.append(now_s())
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        await asyncio.sleep(seconds)
        self.open -= 1
        charge.used = None if used is None else Usage(output=used)
        limits.end(charge)


async def every(period_s: float, times: int, do: Callable[[int], Awaitable[None]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(times):
            tasks.create_task(do(number))
            await asyncio.sleep(period_s)


@in_virtual_time
async def test_a_limit_by_the_minute_is_exact_over_all_processes() -> None:
    fleet = Fleet(Limits(requests_per_minute=120))
    async with asyncio.timeout(600):
        await every(0.05, 3600, lambda number: fleet.ask(number % PROCESSES))
    for minute in range(1, 4):
        admitted = sum(at_s <= 60 * minute for at_s in fleet.admitted)
        # A burst of one minute's limit, and the rate from then on.
        assert admitted == pytest.approx(120 * (1 + minute), abs=2)


@in_virtual_time
async def test_a_burst_that_comes_to_all_processes_at_once_is_admitted_once() -> None:
    fleet = Fleet(Limits(requests_at_once=8, requests_per_minute=10_000))
    for _ in range(5):
        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(fleet.ask(number % PROCESSES, seconds=1.0))
    assert (fleet.most_open, len(fleet.admitted)) == (8, 40)


@in_virtual_time
async def test_who_asks_again_when_an_answer_has_ended_is_admitted_by_any_process() -> None:
    fleet = Fleet(Limits(requests_at_once=1), 2)
    for number in range(20):
        await fleet.ask(number % 2, seconds=0.5)
        await asyncio.sleep(0.2)  # two ways to the Router, which this one has slow
    assert fleet.refusals == []


@in_virtual_time
async def test_tokens_are_charged_by_what_was_used_in_the_end() -> None:
    fleet = Fleet(Limits(tokens_per_minute=1000))
    for number in range(10):
        await fleet.ask(number % PROCESSES, tokens=900, used=90)
        await asyncio.sleep(2 * PERIOD_S)
    assert len(fleet.admitted) >= 2
    spent = Fleet(Limits(tokens_per_minute=1000))
    await spent.ask(0, tokens=10, used=1990)
    await asyncio.sleep(2 * PERIOD_S)
    await spent.ask(1, tokens=10)
    assert "tokens_per_minute of the API key c is 1000" in spent.refusals[0].message


@in_virtual_time
async def test_without_a_router_each_process_has_its_share() -> None:
    fleet = Fleet(Limits(requests_per_minute=120, requests_at_once=8))
    for number in range(2 * PROCESSES):  # all of them are known
        await fleet.ask(number % PROCESSES, seconds=0.1)
    fleet.router.lost, before = True, len(fleet.admitted)
    began_s = now_s()
    await every(0.05, 2400, lambda number: fleet.ask(number % PROCESSES, seconds=0.2))
    minutes = (now_s() - began_s) / 60
    assert len(fleet.admitted) - before <= 120 * (1 + minutes) * 1.05
    assert len(fleet.admitted) - before >= 120 * minutes * 0.95
    assert fleet.most_open <= 8


@in_virtual_time
async def test_without_a_router_a_refusal_names_the_whole_limit_and_is_final_only_beyond_it() -> None:
    fleet = Fleet(Limits(tokens_per_minute=1000))
    for number in range(2 * PROCESSES):  # all of them are known
        await fleet.ask(number % PROCESSES)
    fleet.router.lost = True
    for tokens in (400, 1001):  # a process's share is 250
        await fleet.ask(0, tokens=tokens)
    assert [refused.retry_after_s for refused in fleet.refusals] == [AGAIN_S, None]
    assert all("tokens_per_minute of the API key c is 1000" in refused.message for refused in fleet.refusals)


@in_virtual_time
async def test_a_lost_router_delays_those_that_ask_in_one_moment_and_nobody_later() -> None:
    fleet = Fleet(Limits(requests_per_minute=100_000), 1)
    await fleet.ask(0)
    fleet.router.lost = True
    waits = []
    for _ in range(100):
        began_s = now_s()
        await fleet.ask(0)
        waits.append(now_s() - began_s)
        await asyncio.sleep(0.05)
    assert max(waits) <= PATIENCE_S + 0.01
    assert sum(wait > 0.001 for wait in waits) == 1


@in_virtual_time
async def test_unused_tokens_are_returned_when_a_request_ends() -> None:
    fleet = Fleet(Limits(tokens_per_minute=1000), 2)
    await fleet.ask(0, tokens=900, used=10)
    await asyncio.sleep(PERIOD_S / 2)
    await fleet.ask(1, tokens=900, used=10)
    assert len(fleet.admitted) == 2


@in_virtual_time
async def test_a_client_that_was_idle_has_its_whole_limit_again() -> None:
    fleet = Fleet(Limits(requests_per_minute=10, tokens_per_minute=1000), 2)
    for start_s in (0.0, 300.0, 600.0):
        await asyncio.sleep(start_s - now_s())
        for number in range(10):
            await fleet.ask(number % 2, tokens=100)
    assert fleet.refusals == []


@in_virtual_time
async def test_a_process_that_heard_little_does_not_hold_against_a_client_what_another_has_returned() -> None:
    fleet = Fleet(Limits(tokens_per_minute=1000), 2)
    await fleet.ask(0, tokens=1, used=1)
    await asyncio.sleep(FORGET_EVERY_S - 2.0)
    other = asyncio.create_task(fleet.ask(0, seconds=1.0, tokens=900, used=10))
    await asyncio.sleep(0.5)
    await fleet.ask(1, tokens=50, used=10)
    await other
    await asyncio.sleep(5.0)
    await fleet.ask(1, tokens=900)
    assert fleet.refusals == []


@in_virtual_time
async def test_a_router_that_is_back_knows_what_was_returned_before() -> None:
    fleet = Fleet(Limits(tokens_per_minute=1000), 1)
    await fleet.ask(0, tokens=900, used=10)
    await asyncio.sleep(2 * PERIOD_S)
    fleet.router.book = LimitBook()
    await fleet.ask(0, tokens=900, used=10)
    assert fleet.refusals == []


@in_virtual_time
async def test_a_router_that_is_back_goes_on_from_what_was_heard() -> None:
    fleet = Fleet(Limits(requests_per_minute=60, requests_at_once=2), 1)
    for _ in range(30):
        await fleet.ask(0)
    holding = asyncio.create_task(fleet.ask(0, seconds=100.0))
    await asyncio.sleep(1.0)
    fleet.router.book = LimitBook()
    await asyncio.sleep(1.0)
    assert fleet.processes[0].headers(fleet.client)["x-ratelimit-remaining-requests"] in ("31", "32", "33", "34", "35")
    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(fleet.ask(0, seconds=10))
    assert fleet.most_open == 2
    holding.cancel()


@in_virtual_time
async def test_a_router_that_was_away_hears_what_was_admitted_without_it() -> None:
    fleet = Fleet(Limits(requests_per_minute=60, tokens_per_minute=60_000), 2)
    for process in (0, 1):
        await fleet.ask(process)
    fleet.router.lost = True
    for _ in range(20):
        await fleet.ask(0, tokens=1000)
    fleet.router.lost = False
    await asyncio.sleep(PATIENCE_S + 1.0)
    await fleet.ask(1)
    left = fleet.processes[1].headers(fleet.client)
    assert int(left["x-ratelimit-remaining-requests"]) < 60 - 20 + 6
    assert int(left["x-ratelimit-remaining-tokens"]) < 60_000 - 20_000 + 6000


@in_virtual_time
async def test_an_answer_may_take_seconds() -> None:
    fleet = Fleet(Limits(requests_per_minute=1), 2)

    async def slow(report: LimitReport) -> LimitAnswer:
        await asyncio.sleep(2.0)
        return fleet.router.book.exchange(report, now_s())

    for process in fleet.processes * 2:
        with contextlib.suppress(LimitError):
            await process.admit(Charge(fleet.client, "m", 0, 1), slow)
            fleet.admitted.append(now_s())
    assert len(fleet.admitted) == 1


@in_virtual_time
async def test_a_client_that_leaves_before_the_verdict_holds_nothing() -> None:
    fleet = Fleet(Limits(requests_at_once=1, tokens_per_minute=100), 1)
    left = asyncio.create_task(fleet.ask(0, tokens=50))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.sleep(1.0)
    await fleet.ask(0, tokens=100)
    assert len(fleet.admitted) == 1


@in_virtual_time
async def test_a_client_that_leaves_as_its_verdict_arrives_holds_nothing() -> None:
    fleet = Fleet(Limits(requests_at_once=1, tokens_per_minute=100), 1)

    async def exchange(report: LimitReport) -> LimitAnswer:
        answer = fleet.router.book.exchange(report, now_s())
        asyncio.get_running_loop().call_soon(left.cancel)  # after the verdict, before its request continues
        return answer

    left = asyncio.create_task(fleet.processes[0].admit(Charge(fleet.client, "m", 0, 50), exchange))
    await asyncio.gather(left, return_exceptions=True)
    assert left.cancelled()
    await asyncio.sleep(1.0)
    await fleet.ask(0, tokens=100)
    assert fleet.refusals == []


@in_virtual_time
async def test_the_router_is_not_asked_as_part_of_the_request_that_came_first() -> None:
    """Serve cancels a request's calls when the request is cancelled."""
    fleet, request = Fleet(Limits(requests_per_minute=60), 1), ContextVar("request", default="none")
    seen = []

    async def exchange(report: LimitReport) -> LimitAnswer:
        seen.append(request.get())
        return await fleet.router.exchange(report)

    request.set("first")
    await fleet.processes[0].admit(Charge(fleet.client, "m", 0, 1), exchange)
    assert seen == ["none"]


@in_virtual_time
async def test_a_client_without_limits_asks_nobody() -> None:
    fleet = Fleet(Limits())
    await fleet.ask(0)
    assert (fleet.router.asked, fleet.processes[0].headers(fleet.client)) == (0, {})


@in_virtual_time
async def test_a_request_too_large_is_told_what_to_do_and_not_to_come_again() -> None:
    fleet = Fleet(Limits(tokens_per_minute=100), 1)
    await fleet.ask(0, tokens=101)
    (refused,) = fleet.refusals
    assert refused.retry_after_s is None
    assert "lower max_tokens" in refused.message
