"""Which replies of a replica carry an answer, and which only open one."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import BackPressureError

from peagle.api.dialects.stream_kinds import DONE, MESSAGE, RESPONSE, StreamKind
from peagle.api.ingress import _constraint
from peagle.api.openai_errors import Asked, EngineError
from peagle.api.relay import final_error, first_reply

ROLE = 'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":0}}\n\n'


async def replies(*parts: Any) -> AsyncGenerator[Any, None]:
    for part in parts:
        yield part


async def test_events_up_to_the_first_token_are_kept_in_order() -> None:
    assert await first_reply(replies(ROLE, TOKEN, TOKEN), Asked("messages"), preamble=1) == [ROLE, TOKEN]
    assert await first_reply(replies([ROLE, TOKEN, DONE]), Asked("messages"), preamble=1) == [ROLE, TOKEN, DONE]


@pytest.mark.parametrize("parts", [(ROLE, DONE), ([ROLE, DONE],), (ROLE, USAGE, DONE)])
async def test_a_stream_that_ends_before_its_first_token_failed(parts: tuple[Any, ...]) -> None:
    with pytest.raises(EngineError) as caught:
        await first_reply(replies(*parts), Asked("messages"), preamble=1)
    assert caught.value.reply.status == 500


async def test_under_a_constraint_it_is_the_constraint_that_cannot_be_followed() -> None:
    with pytest.raises(EngineError) as caught:
        await first_reply(replies(DONE), Asked("prompt", "structured_outputs"), preamble=0)
    assert (caught.value.reply.status, caught.value.reply.param) == (400, "structured_outputs")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (SimpleNamespace(response_format=SimpleNamespace(type="text")), None),
        (SimpleNamespace(response_format=SimpleNamespace(type="json_object")), "response_format"),
        (SimpleNamespace(response_format=None, structured_outputs=SimpleNamespace(regex="a")), "structured_outputs"),
        (SimpleNamespace(), None),
    ],
)
def test_plain_text_is_no_constraint(body: Any, field: str | None) -> None:
    assert _constraint(body) == field


def test_a_refusal_for_want_of_room_is_logged_without_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="peagle.api.ingress"):
        refused = final_error(BackPressureError(num_queued_requests=1, max_queued_requests=1), Asked("prompt"), 3.0)
        assert isinstance(refused, EngineError)
        assert (refused.reply.status, caplog.records) == (429, [])
        final_error(OSError("gone"), Asked("prompt"), 3.0)
    assert [record.exc_info is not None for record in caplog.records] == [True]


CREATED = 'event: response.created\ndata: {"type":"response.created"}\n\n'
DELTA = 'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
START = 'event: message_start\ndata: {"type":"message_start"}\n\n'
BLOCK = 'event: content_block_delta\ndata: {"delta":{"text":"a"}}\n\n'
ENGINE_ERROR = 'data: {"error": {"message": "too hot", "param": "temperature", "code": 400}}\n\n'
OTHER_KINDS = pytest.mark.parametrize(
    ("kind", "opening", "token"), [(RESPONSE, CREATED, DELTA), (MESSAGE, START, BLOCK)], ids=["response", "message"]
)


@OTHER_KINDS
async def test_what_opens_a_stream_waits_for_its_first_token(kind: StreamKind, opening: str, token: str) -> None:
    assert await first_reply(replies(opening, token, token), Asked("input"), kind=kind) == [opening, token]


@OTHER_KINDS
async def test_an_error_before_the_first_token_has_a_status(kind: StreamKind, opening: str, token: str) -> None:
    with pytest.raises(EngineError) as refused:
        await first_reply(replies(opening, ENGINE_ERROR), Asked("input"), kind=kind)
    assert (refused.value.reply.status, refused.value.reply.param) == (400, "temperature")
