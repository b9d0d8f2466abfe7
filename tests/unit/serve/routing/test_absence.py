"""How long requests wait while a model has no replica."""

import asyncio

import pytest

from peagle.errors import NoReplicaError
from peagle.serve.routing.absence import Absence
from support.virtual_time import in_virtual_time


async def _wait_in(absence: Absence, seconds: float = 1000.0) -> float:
    """Wait for this long; return the seconds until it ended."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        async with absence.bounded():
            await asyncio.sleep(seconds)
    except NoReplicaError:
        pass
    return loop.time() - began_s


@in_virtual_time
async def test_where_replicas_are_there_a_wait_has_no_bound() -> None:
    assert await _wait_in(Absence(30.0), 500.0) == pytest.approx(500.0)


@in_virtual_time
async def test_a_request_that_finds_none_waits_for_one_and_then_gives_up() -> None:
    absence = Absence(30.0)
    absence.began()
    assert await _wait_in(absence) == pytest.approx(30.0)
    with pytest.raises(NoReplicaError, match="No replica"):
        async with absence.bounded():
            await asyncio.sleep(1000.0)


@in_virtual_time
async def test_one_that_waits_when_the_last_goes_waits_as_long_from_then_on() -> None:
    absence = Absence(30.0)
    waiting = asyncio.create_task(_wait_in(absence))
    await asyncio.sleep(100.0)
    absence.began()
    await asyncio.sleep(10.0)
    absence.began()  # nothing new
    assert await waiting == pytest.approx(130.0)


@in_virtual_time
async def test_a_replica_that_comes_ends_the_bound() -> None:
    absence = Absence(30.0)
    absence.began()
    waiting = asyncio.create_task(_wait_in(absence, 200.0))
    await asyncio.sleep(20.0)
    absence.ended()
    assert await waiting == pytest.approx(200.0)


@in_virtual_time
async def test_without_patience_given_a_request_waits_for_ever() -> None:
    absence = Absence(None)
    absence.began()
    assert await _wait_in(absence, 5000.0) == pytest.approx(5000.0)


@in_virtual_time
async def test_a_replica_that_comes_as_one_request_gives_up_ends_the_bound_of_the_others() -> None:
    absence, loop, problems = Absence(30.0), asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, problem: problems.append(problem))
    absence.began()
    gives_up = asyncio.create_task(_wait_in(absence))
    await asyncio.sleep(10.0)
    others = [asyncio.create_task(_wait_in(absence, 200.0)) for _ in range(10)]
    loop.call_at(30.0 + 1e-10, absence.ended)  # in the same turn of the loop, after its timer
    assert await gives_up == pytest.approx(30.0)
    assert await asyncio.gather(*others) == pytest.approx([200.0] * 10)
    assert problems == []
