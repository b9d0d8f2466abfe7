"""A stalled engine: its requests move, and it is ended if it hangs."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from peagle.errors import EngineStalledError
from peagle.router.engine_pulse import EnginePulse
from peagle.serve.replica import engine_watch
from peagle.serve.replica.engine_watch import EngineWatch
from support.waiting import until


class Engine:
    """An engine that answers its probe and its requests until it is stopped."""

    def __init__(self, moves: bool = True, hung_after_s: float = 60.0) -> None:
        self.runs, self.ended = asyncio.Event(), False
        self.runs.set()
        self.watch = EngineWatch(
            EnginePulse(hung_after_s), self.runs.wait, lambda: (0, 1000.0), moves=moves, end=self.end
        )

    def end(self) -> None:
        self.ended = True

    async def replies(self, *texts: str) -> AsyncGenerator[Any, None]:
        for text in texts:
            await self.runs.wait()
            yield text

    async def ask(self, *texts: str, last_try: bool = False) -> list[Any]:
        return [reply async for reply in self.watch.movable(self.replies(*texts), last_try=last_try)]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "PERIOD_S", 0.01)
    monkeypatch.setattr("peagle.router.engine_pulse.STALLED_AFTER_S", 0.1)


@pytest.fixture
async def engine(quick: None) -> AsyncGenerator[Engine, None]:
    engine = Engine()
    running = asyncio.create_task(engine.watch.run())
    yield engine
    running.cancel()


async def _until_stalled(engine: Engine) -> None:
    await until(lambda: engine.watch.stalled)


async def test_an_engine_that_answers_is_left_alone(engine: Engine) -> None:
    assert await engine.ask("a", "b") == ["a", "b"]
    await asyncio.sleep(0.5)
    assert (engine.watch.stalled, engine.watch.stalls, engine.ended) == (False, 0, False)


async def test_a_request_that_waits_for_its_first_token_is_given_back(engine: Engine) -> None:
    engine.runs.clear()
    with pytest.raises(EngineStalledError):
        await engine.ask("a")


async def test_so_is_one_that_comes_then_and_none_after_the_engine_is_back(engine: Engine) -> None:
    engine.runs.clear()
    await _until_stalled(engine)
    with pytest.raises(EngineStalledError):
        await engine.ask("a")
    engine.runs.set()
    await until(lambda: not engine.watch.stalled)
    assert engine.watch.stalls == 1
    assert await engine.ask("a") == ["a"]


async def test_an_answer_that_has_begun_waits(engine: Engine) -> None:
    replies = engine.watch.movable(engine.replies("a", "b"))
    assert await anext(replies) == "a"
    engine.runs.clear()
    rest = asyncio.create_task(anext(replies))
    await _until_stalled(engine)
    engine.runs.set()
    assert await rest == "b"


async def test_where_there_is_no_other_replica_a_request_waits(quick: None) -> None:
    engine = Engine(moves=False)
    running = asyncio.create_task(engine.watch.run())
    engine.runs.clear()
    asked = asyncio.create_task(engine.ask("a"))
    await _until_stalled(engine)
    engine.runs.set()
    assert await asked == ["a"]
    running.cancel()


async def test_a_request_that_is_not_tried_again_waits(engine: Engine) -> None:
    engine.runs.clear()
    await _until_stalled(engine)
    asked = asyncio.create_task(engine.ask("a", last_try=True))
    await asyncio.sleep(0.05)
    engine.runs.set()
    assert await asked == ["a"]


async def test_an_engine_that_hangs_is_ended(quick: None) -> None:
    engine = Engine(hung_after_s=0.3)
    running = asyncio.create_task(engine.watch.run())
    engine.runs.clear()
    await running
    assert engine.ended
    assert engine.watch.stalled


async def test_a_failure_that_the_cancellation_is_answered_with_is_not_taken_for_an_answer(engine: Engine) -> None:
    async def answers_its_cancellation() -> AsyncGenerator[Any, None]:
        try:
            await engine.runs.wait()
        except asyncio.CancelledError:
            yield "Client disconnected"

    engine.runs.clear()
    with pytest.raises(EngineStalledError):
        await anext(engine.watch.movable(answers_its_cancellation()))


async def test_a_client_that_leaves_is_not_taken_for_a_stall(engine: Engine) -> None:
    engine.runs.clear()
    asked = asyncio.create_task(engine.ask("a"))
    await asyncio.sleep(0.02)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
