"""Preparation before the first client, and failures that do not keep a replica from serving."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.config import Deployment, parse_deployment
from peagle.engine.depth import calibration, warm_up
from peagle.router.snapshot import StepTime
from peagle.serve.replica import making_ready
from peagle.serve.replica.making_ready import make_ready
from support.virtual_time import in_virtual_time

TIMED = (StepTime(1, 7, 8, 0.1),)


def deployment(**speculation: Any) -> Deployment:
    raw: dict[str, Any] = {
        "name": "m",
        "target": {"source": "org/target"},
        "drafter": {"source": "org/head", "trained_depth": 7},
        "speculation": speculation,
    }
    return parse_deployment(raw, origin="test")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the executed steps, in order."""
    order: list[str] = []

    async def answer(client: Any, pools: bool) -> None:
        order.append("answered")

    async def warm(client: Any, deployment: Deployment, tell: Any) -> int:
        order.append("warmed")
        tell(0, 2)
        if client.fails:
            raise ExceptionGroup("batch", [RuntimeError("a kernel")])
        return 2

    async def time_steps(*args: Any, **options: Any) -> tuple[StepTime, ...]:
        order.append("timed")
        return TIMED

    monkeypatch.setattr(making_ready, "answer_once", answer)
    monkeypatch.setattr(warm_up, "warm_up", warm)
    monkeypatch.setattr(calibration, "calibrate", time_steps)
    return order


def engine(fails: bool = False, errored: bool = False) -> Any:
    return SimpleNamespace(fails=fails, errored=errored)


async def test_only_what_is_warm_is_timed(done: list[str]) -> None:
    ready = await make_ready(engine(), deployment(), timed=True)
    assert done == ["answered", "warmed", "timed"]
    assert ready.calibration == TIMED
    assert ready.warm_up_s >= 0.0


@pytest.mark.parametrize(
    ("speculation", "timed"),
    [({"calibration_s": 0}, True), ({"adaptive": False}, True), ({}, False)],
    ids=["no time for it", "fixed depth", "nobody chooses"],
)
async def test_an_engine_whose_steps_are_not_timed_is_warm_all_the_same(
    done: list[str], speculation: dict[str, Any], timed: bool
) -> None:
    assert (await make_ready(engine(), deployment(**speculation), timed=timed)).calibration == ()
    assert done == ["answered", "warmed"]


@in_virtual_time
async def test_steps_that_were_timed_are_kept_if_the_engine_takes_its_own_depths_back_slowly(
    monkeypatch: pytest.MonkeyPatch, done: list[str]
) -> None:
    slow = deployment(calibration_s=15.0)

    async def time_steps(*args: Any, **options: Any) -> tuple[StepTime, ...]:
        await asyncio.sleep(slow.speculation.calibration_s + 10.0)
        return TIMED

    monkeypatch.setattr(calibration, "calibrate", time_steps)
    assert (await make_ready(engine(), slow, timed=True)).calibration == TIMED


async def test_a_warm_up_that_fails_is_told_and_stops_nothing(
    done: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "ray.serve.replica"):
        await make_ready(engine(fails=True), deployment(), timed=True)
    assert "could not be warmed up" in caplog.text
    assert "Warming up: 0 of 2 batches" in caplog.text
    assert done == ["answered", "warmed", "timed"]


async def test_an_engine_that_died_of_it_is_no_replica(done: list[str]) -> None:
    with pytest.raises(ExceptionGroup):
        await make_ready(engine(fails=True, errored=True), deployment(), timed=True)
