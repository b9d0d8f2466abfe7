"""Stream formats of each API: content events, end events and error events."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from peagle.api.dialects.stream_kinds import COMPLETION, DONE, MESSAGE, RESPONSE, StreamKind, is_whole, kind_at
from peagle.api.openai_errors import Asked
from peagle.api.relay import relay
from peagle.api.reply import ErrorReply, has_tokens

ASKED = Asked("input")
CREATED = 'event: response.created\ndata: {"type":"response.created"}\n\n'
IN_PROGRESS = 'event: response.in_progress\ndata: {"type":"response.in_progress"}\n\n'
DELTA = 'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
COMPLETED = 'event: response.completed\ndata: {"response":{}}\n\n'
START = 'event: message_start\ndata: {"type":"message_start"}\n\n'
BLOCK = 'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'
STOP = 'event: message_stop\ndata: {"type":"message_stop"}\n\n'
ENGINE_ERROR = 'data: {"error": {"message": "too hot", "param": "temperature", "code": 400}}\n\n'
LOST = ErrorReply(502, "The replica was lost.", "server_error")

STREAMS = pytest.mark.parametrize(
    ("kind", "opening", "token", "last"),
    [(RESPONSE, [CREATED, IN_PROGRESS], DELTA, COMPLETED), (MESSAGE, [START], BLOCK, STOP)],
    ids=["response", "message"],
)


async def replies(*parts: Any) -> AsyncGenerator[Any, None]:
    for part in parts:
        yield part


async def relayed(kind: StreamKind, *parts: str) -> str:
    rest = replies(*parts)
    return "".join([packet async for packet in relay([await anext(rest)], rest, ASKED, 1.0, kind=kind)])


@STREAMS
async def test_a_whole_stream_passes_unchanged(kind: StreamKind, opening: list[str], token: str, last: str) -> None:
    assert await relayed(kind, *opening, token, last) == "".join([*opening, token, last])
    assert is_whole((token + last).encode())
    assert not is_whole((opening[0] + token).encode())


@STREAMS
@pytest.mark.parametrize("end", [[], [ENGINE_ERROR]], ids=["cut", "error"])
async def test_one_that_is_not_whole_ends_with_an_error_that_clients_raise(
    kind: StreamKind, opening: list[str], token: str, last: str, end: list[str]
) -> None:
    text = await relayed(kind, *opening, token, *end)
    event = text.removeprefix("".join([*opening, token]))
    assert event.startswith("event: error\ndata: ")
    body = json.loads(event.removeprefix("event: error\ndata: "))
    assert body["type"] == "error"
    assert body["error"]["message"] == ("too hot" if end else "The replica ended before its answer was complete.")


def test_only_pieces_of_an_answer_are_timed() -> None:
    for packet, timed in ((DELTA, True), (BLOCK, True), (CREATED + IN_PROGRESS + DELTA, True), (START, False)):
        assert has_tokens(packet.encode()) == timed
    assert not has_tokens(COMPLETED.encode() + STOP.encode() + DONE.encode())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", COMPLETION),
        ("/v1/responses", RESPONSE),
        ("/prefix/v1/messages/", MESSAGE),
        ("/v1/messages/count_tokens", COMPLETION),
    ],
)
def test_a_route_has_its_kind_of_stream(path: str, kind: StreamKind) -> None:
    assert kind_at(path) is kind
    assert kind.error_event(LOST).startswith("data: " if kind is COMPLETION else "event: error\n")
