"""A stream's usage is read from its events, and removed if the client did not ask for it."""

import asyncio
import importlib
import pickle
from collections.abc import AsyncGenerator, Sequence
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from peagle.api.clients.metered_replies import ask_for_usage, metered
from peagle.api.clients.request_charge import Charge, Usage
from peagle.api.dialects.stream_kinds import MESSAGE, RESPONSE, StreamKind
from peagle.router.fairness.client_terms import Client

DONE = "data: [DONE]\n\n"
PLAIN = 'data: {"id":"1","choices":[{"index":%d,"text":"a, \\"usage\\":{1}"}]}\n\n'
USED = '"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":%d}'
WHOLE = (
    'data: {"id":"1","choices":[],"usage":{"prompt_tokens":12,"total_tokens":21,"completion_tokens":9,'
    '"prompt_tokens_details":{"cached_tokens":4},"speculation":{"drafted_tokens":14,"accepted_tokens":6}},'
    '"system_fingerprint":"x"}\n\n'
)


class Options(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Body(BaseModel):
    stream: bool = True
    stream_options: Options | None = None


class Answer(BaseModel):
    usage: Options | None = None


def event(index: int, output: int) -> str:
    return (PLAIN % index).replace("}]}", "}]," + USED % output + "}")


async def passed(replies: Sequence[Any], body: BaseModel, charge: Charge) -> list[Any]:
    """Return the client's part of these replies; their usage is recorded in `charge`."""
    stream = metered(iterated(replies), body, charge, lambda: None, lambda: None)
    return [kept async for kept in stream]


async def iterated(replies: Sequence[Any]) -> AsyncGenerator[Any, None]:
    for reply in replies:
        yield reply


EVENTS = [event(0, 1), event(1, 1), [event(0, 3), WHOLE, DONE]]


def relayed(options: Options | None, *, stop_after: int = 99) -> tuple[list[str], Charge, list[str]]:
    """Return the client's events, the charge, and its state in between."""
    charge, told = Charge(Client("c"), "m", 1, 1), []

    async def read() -> list[str]:
        got: list[str] = []
        body = Body(stream_options=options)
        stream = metered(iterated(EVENTS), body, charge, lambda: told.append("begin"), lambda: told.append("end"))
        async for kept in stream:
            got += [*kept, *(f"told {told.pop()}" for _ in told[-1:] if told[-1] == "end")]
            if len(got) >= stop_after:
                break
        await stream.aclose()
        return got

    return asyncio.run(read()), charge, told


def test_a_client_that_did_not_ask_gets_the_stream_as_it_would_be() -> None:
    got, charge, told = relayed(None)
    assert got == [PLAIN % 0, PLAIN % 1, PLAIN % 0, DONE, "told end"]
    assert charge.used == Usage(12, 4, 9, 14, 6)
    assert told[0] == "begin"


def test_a_client_that_asked_gets_the_usage_at_the_end() -> None:
    got, _, _ = relayed(Options(include_usage=True))
    assert got == [PLAIN % 0, PLAIN % 1, PLAIN % 0, WHOLE, DONE, "told end"]


def test_a_client_that_asked_for_it_all_along_gets_it_so() -> None:
    got, _, _ = relayed(Options(include_usage=True, continuous_usage_stats=True))
    assert got == [event(0, 1), event(1, 1), event(0, 3), WHOLE, DONE, "told end"]


@pytest.mark.parametrize(("count", "output"), [(1, 1), (2, 2)])
def test_a_client_that_leaves_is_charged_for_what_it_was_sent(count: int, output: int) -> None:
    _, charge, _ = relayed(None, stop_after=count)
    assert charge.used == Usage(prompt=12, output=output)


@pytest.mark.parametrize("api", ["chat_completion", "completion"])
async def test_events_as_vllm_writes_them_lose_their_usage_and_nothing_else(api: str) -> None:
    protocol = importlib.import_module(f"vllm.entrypoints.openai.{api}.protocol")
    chat = api == "chat_completion"
    made, choice = (
        (protocol.ChatCompletionStreamResponse, {"index": 0, "delta": {"content": 'a,"usage":{"b":1}'}})
        if chat
        else (protocol.CompletionStreamResponse, {"index": 0, "text": 'a,"usage":{"b":1}'})
    )
    chunk = made(id="1", created=1, model="m", choices=[choice], system_fingerprint="x")
    plain = f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    chunk.usage = get_args(made.model_fields["usage"].annotation)[0](
        prompt_tokens=12, completion_tokens=3, total_tokens=15, completion_tokens_details=None
    )
    told = f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    assert told != plain
    charge = Charge(Client("c"), "m", 1, 1)
    assert await passed([told], Body(), charge) == [[plain]]
    assert charge.used == Usage(prompt=12, output=3)


@pytest.mark.parametrize("name", ["ChatCompletionRequest", "CompletionRequest"])
def test_vllm_s_requests_take_the_options(name: str) -> None:
    models = importlib.import_module("ray.llm._internal.serve.core.configs.openai_api_models")
    text = {"messages": [{"role": "user", "content": "x"}]} if name.startswith("Chat") else {"prompt": "x"}
    body = getattr(models, name)(model="m", stream=True, **text)
    sent = pickle.loads(pickle.dumps(ask_for_usage(body)))
    assert (sent.stream_options.include_usage, sent.stream_options.continuous_usage_stats) == (True, True)
    assert body.stream_options is None


def test_a_stream_s_engine_is_asked_for_usage_and_the_client_s_request_stays() -> None:
    body = Body(stream_options=Options(include_usage=False))
    sent = ask_for_usage(body)
    assert sent.stream_options == Options(include_usage=True, continuous_usage_stats=True)
    assert body.stream_options == Options()
    whole = Body(stream=False)
    assert ask_for_usage(whole) is whole


@pytest.mark.parametrize(
    ("answer", "used"),
    [
        (Answer(), Usage()),
        ({"usage": {"input_tokens": 5, "output_tokens": 2}}, Usage(prompt=5, output=2)),
    ],
    ids=["of nothing", "of plain values"],
)
async def test_what_a_whole_answer_says_of_its_use_is_read(answer: Any, used: Usage) -> None:
    charge = Charge(Client("c"), "m", 1, 1)
    assert await passed([answer], Body(stream=False), charge) == [answer]
    assert charge.used == used


@pytest.mark.parametrize(
    ("kind", "events", "used"),
    [
        (
            RESPONSE,
            [
                'event: response.created\ndata: {"response":{"usage":null}}\n\n',
                'event: response.output_text.delta\ndata: {"delta":"event: response.completed"}\n\n',
                'event: response.completed\ndata: {"response":{"usage":{"input_tokens":12,"output_tokens":9,'
                '"input_tokens_details":{"cached_tokens":4}}}}\n\n',
            ],
            Usage(prompt=12, cached=4, output=9),
        ),
        (
            MESSAGE,
            [
                'event: message_start\ndata: {"message":{"usage":{"input_tokens":8,"output_tokens":0}}}\n\n',
                'event: message_delta\ndata: {"usage":{"input_tokens":8,"cache_read_input_tokens":4,'
                '"output_tokens":9}}\n\n',
                "event: message_stop\ndata: {}\n\n",
            ],
            Usage(prompt=12, cached=4, output=9),
        ),
    ],
    ids=["response", "message"],
)
async def test_streams_of_other_apis_are_read_and_left_as_they_are(
    kind: StreamKind, events: list[str], used: Usage
) -> None:
    charge, ended_before, got = Charge(Client("c"), "m", 1, 1), [], list[str]()

    def end() -> None:
        ended_before.append(len(got))

    async for kept in metered(iterated(events), Answer(), charge, lambda: None, end, kind):
        got += kept
    assert got == events
    assert charge.used == used
    assert ended_before == [len(events) - 1]
