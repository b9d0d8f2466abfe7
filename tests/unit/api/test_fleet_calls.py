"""Calls to every replica share one deadline, and silent replicas are left out."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from peagle.api.fleet_calls import ask_replicas
from support.virtual_time import in_virtual_time


class Call:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    async def get_async(self) -> Any:
        return await self._answer()


class Handle:
    """The used part of Serve's handle: replicas are found after `found_s`, and each answers in its own way."""

    deployment_name = "d"

    def __init__(self, found_s: float, *answers: Callable[[], Any]) -> None:
        self._found_s, self._answers = found_s, answers
        self.asked: list[tuple[Any, ...]] = []

    def broadcast(self, *question: Any) -> "Handle":
        self.asked.append(question)
        return self

    async def _fetch_replica_results_async(self) -> list[Call]:
        await asyncio.sleep(self._found_s)
        return [Call(answer) for answer in self._answers]


async def late() -> str:
    await asyncio.sleep(0.4)
    return "late"


async def quick() -> str:
    return "quick"


async def fails() -> str:
    raise RuntimeError("gone")


@pytest.mark.parametrize(
    ("found_s", "answers"),
    [(0.0, ["quick", "late"]), (0.3, ["quick"]), (5.0, [])],
    ids=["in time", "found late", "not found"],
)
@in_virtual_time
async def test_finding_replicas_and_their_answers_share_the_time(found_s: float, answers: list[str]) -> None:
    handle: Any = Handle(found_s, quick, late, fails)
    assert await ask_replicas(handle, "count", 0.6, True) == answers
    assert handle.asked == [("count", True)]
