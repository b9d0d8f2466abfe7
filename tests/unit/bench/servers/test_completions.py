"""Answers are parsed from a stream's bytes however they are split; real servers' answers and failures."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.bench.servers.completions import Completions, client_session, read_reply
from peagle.errors import StartupError

PIECES = ("import", " os", "\n\n", "é")


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def said(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text}], "usage": None})


USAGE = event({"choices": [], "usage": {"completion_tokens": 7}})
WHOLE = [*map(said, PIECES), USAGE, event(b"[DONE]")]


def test_each_arrival_with_a_part_of_the_answer_is_an_output() -> None:
    reply = read_reply([(float(at), data) for at, data in enumerate(WHOLE, start=1)])
    assert reply is not None
    assert (reply.text, reply.tokens) == ("".join(PIECES), 7)
    assert reply.arrivals_s == (1.0, 2.0, 3.0, 4.0)
    assert (reply.ttft_s, reply.gaps_s) == (1.0, [1.0, 1.0, 1.0])


def test_parts_that_arrive_together_are_one_output() -> None:
    reply = read_reply([(1.0, WHOLE[0]), (2.0, WHOLE[1] + WHOLE[2]), (3.0, b"".join(WHOLE[3:]))])
    assert reply is not None
    assert reply.arrivals_s == (1.0, 2.0, 3.0)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(b"".join(WHOLE)))))
def test_wherever_the_stream_is_cut_the_answer_is_the_same(cuts: list[int]) -> None:
    stream = b"".join(WHOLE)
    places = [0, *sorted(cuts), len(stream)]
    chunks = [(float(end), stream[start:end]) for start, end in pairwise(places)]
    reply = read_reply(chunks)
    assert reply is not None
    assert (reply.text, reply.tokens) == ("".join(PIECES), 7)
    assert sorted(reply.arrivals_s) == list(reply.arrivals_s)


def test_of_a_chat_what_says_nothing_is_no_output() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "so"}, {"content": "a"}, {"content": "b"}, {}]
    parts = [event({"choices": [{"index": 0, "delta": delta}], "usage": None}) for delta in deltas]
    reply = read_reply([(float(at), data) for at, data in enumerate([*parts, USAGE, event(b"[DONE]")])])
    assert reply is not None
    assert (reply.text, reply.tokens, reply.arrivals_s) == ("soab", 7, (1.0, 2.0, 3.0))


def test_a_stream_without_its_end_is_no_answer() -> None:
    assert read_reply([(1.0, b"".join(WHOLE[:-1]))]) is None


@asynccontextmanager
async def client(answer: Any) -> AsyncIterator[tuple[Completions, list[dict[str, Any]]]]:
    """A client of a server with these answers, and the requests that it received."""
    asked: list[dict[str, Any]] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        made: web.StreamResponse = await answer(request)
        return made

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    async with TestServer(app) as server, client_session() as http:
        yield Completions(http, str(server.make_url("")).rstrip("/"), "m", 7), asked


async def stream(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    for piece in WHOLE:
        await answer.write(piece)
    return answer


async def busy(_: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "no room"}}, status=429)


async def test_a_completion_is_streamed_with_usage_and_a_salt_for_the_prompt_cache() -> None:
    async with client(stream) as (completions, asked):
        assert (await completions.ask("import", "salt")).text == "".join(PIECES)
    assert (asked[0]["prompt"], asked[0]["cache_salt"], asked[0]["max_tokens"]) == ("import", "salt", 7)
    assert asked[0]["stream_options"] == {"include_usage": True}


async def test_an_error_and_a_missing_server_are_said_in_a_line() -> None:
    async with client(busy) as (completions, _):
        with pytest.raises(StartupError, match=r"429: .*no room"):
            await completions.ask("import", "salt")
        with pytest.raises(StartupError, match="failed under load"):
            await completions.count_tokens("import")
        gone = Completions(completions.http, "http://127.0.0.1:1", "m", 7)
        with pytest.raises(StartupError, match="failed under load"):
            await gone.ask("import", "salt")


async def test_fewer_tokens_than_were_asked_for_are_a_failure() -> None:
    async with client(stream) as (completions, _):
        short = Completions(completions.http, completions.url, "m", 8)
        with pytest.raises(StartupError, match="ended early"):
            await short.ask("import", "salt")
