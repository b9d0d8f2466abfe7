"""Replies are passed on as a replica sends them; a cancelled request is distinguished from a lost replica."""

import asyncio
from typing import Any

import pytest
from ray.exceptions import RayActorError

from peagle.api.openai_errors import is_lost_replica
from peagle.api.relay import CANCELLED_S, replies_of
from support.virtual_time import in_virtual_time


class Response:
    """Serve's response to one call: `replies`, then whatever `end` does."""

    def __init__(self, replies: list[str], end: Any) -> None:
        self._left, self._end = replies, end
        self.cancelled = False

    async def __anext__(self) -> str:
        return self._left.pop(0) if self._left else await self._end()

    def cancel(self) -> None:
        self.cancelled = True


async def cancelled_elsewhere() -> str:
    raise asyncio.CancelledError


async def silent() -> str:
    await asyncio.Event().wait()
    return ""


@in_virtual_time
async def test_a_call_that_dispatch_ended_is_a_lost_replicas() -> None:
    response = Response(["one"], cancelled_elsewhere)
    replies = replies_of(response, 60.0)
    assert await anext(replies) == "one"
    with pytest.raises(RayActorError) as lost:
        await anext(replies)
    assert is_lost_replica(lost.value)
    assert response.cancelled


@in_virtual_time
async def test_a_request_that_its_client_left_is_cancelled_and_no_replica_blamed() -> None:
    response = Response([], silent)
    asked = asyncio.create_task(anext(replies_of(response, 60.0)))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert response.cancelled


@in_virtual_time
async def test_a_call_that_ends_just_before_its_request_does_blames_no_replica() -> None:
    asked = asyncio.create_task(anext(replies_of(Response([], cancelled_elsewhere), 60.0)))
    await asyncio.sleep(0.9 * CANCELLED_S)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


@in_virtual_time
async def test_a_silent_replica_times_out() -> None:
    response = Response([], silent)
    with pytest.raises(TimeoutError):
        await anext(replies_of(response, 60.0))
    assert response.cancelled
