"""Streams end with `[DONE]` or with an error event, and always close the request behind them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from peagle.api.dialects.stream_kinds import DONE
from peagle.api.openai_errors import Asked, describe
from peagle.api.relay import EventStream, relay
from peagle.api.reply import has_tokens
from peagle.errors import RequestError

ASKED = Asked("prompt")
TOKEN = 'data: {"id":"1","choices":[{"text":"a"}]}\n\n'
ENGINE_ERROR = (
    'data: {"error": {"message": "too hot", "type": "BadRequestError", "param": "temperature", "code": 400}}\n\n'
)


class Replies:
    """A replica's replies, which record that they were closed."""

    def __init__(self, *replies: str | list[str] | Exception | asyncio.Event) -> None:
        self.replies = replies
        self.closed = False

    async def stream(self) -> AsyncGenerator[str | list[str], None]:
        try:
            for reply in self.replies:
                if isinstance(reply, Exception):
                    raise reply
                if isinstance(reply, asyncio.Event):
                    await reply.wait()
                    continue
                yield reply
        finally:
            self.closed = True


async def collect(replies: Replies) -> str:
    rest = replies.stream()
    first = await anext(rest)
    events = relay([first] if isinstance(first, str) else first, rest, ASKED, 1.0)
    text = "".join([event async for event in events])
    assert replies.closed
    return text


def error_of(event: str) -> dict[str, str | None]:
    body: dict[str, dict[str, str | None]] = json.loads(event.removeprefix("data: "))
    return body["error"]


def test_an_error_and_an_end_are_no_part_of_an_answer() -> None:
    assert has_tokens((TOKEN + DONE).encode())
    assert not has_tokens((ENGINE_ERROR + DONE).encode())
    assert not has_tokens(b'data: {"id":"1","choices":[],"usage":{"total_tokens":3}}\n\n')
    quoting = describe(RequestError(f"not this: {TOKEN}", param="prompt"))
    assert not has_tokens(quoting.event().encode())


@pytest.mark.parametrize(
    "replies",
    [
        [TOKEN, TOKEN, DONE],
        [[TOKEN], [TOKEN, DONE]],
        # Losing the replica after a complete stream neither changes nor delays it.
        [TOKEN, TOKEN, DONE, ActorDiedError()],
        [TOKEN, TOKEN, DONE, asyncio.Event()],
    ],
    ids=["one by one", "batched", "lost after it", "silent after it"],
)
async def test_a_whole_stream_passes_unchanged(replies: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.api.relay._END_S", 0.01)
    assert await collect(Replies(*replies)) == TOKEN + TOKEN + DONE


async def test_an_engines_error_is_translated_and_is_the_last_event() -> None:
    text = await collect(Replies(TOKEN, [TOKEN, ENGINE_ERROR, DONE]))
    assert text.startswith(TOKEN * 2)
    assert error_of(text.removeprefix(TOKEN * 2)) == {
        "message": "too hot",
        "type": "invalid_request_error",
        "param": "temperature",
        "code": None,
    }


async def test_a_replica_lost_mid_stream_is_told() -> None:
    text = await collect(Replies(TOKEN, ActorDiedError()))
    assert error_of(text.removeprefix(TOKEN))["type"] == "server_error"
    assert "[DONE]" not in text


async def test_a_stream_that_just_stops_is_not_taken_for_a_whole_one() -> None:
    text = await collect(Replies(TOKEN, TOKEN))
    assert "ended before its answer was complete" in str(error_of(text.removeprefix(TOKEN * 2))["message"])


async def test_a_client_that_cannot_be_sent_to_closes_the_replica() -> None:
    replies = Replies(TOKEN, TOKEN, DONE)
    rest = replies.stream()
    response = EventStream(relay([await anext(rest)], rest, ASKED, 1.0))

    async def broken(message: object) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await response.stream_response(broken)
    # The stream was not read, so only the end of the response can have closed it.
    await rest.aclose()
    assert replies.closed
