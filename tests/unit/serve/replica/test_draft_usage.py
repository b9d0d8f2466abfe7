"""Draft counts in `usage`: of every choice, whole or streamed, and only if the engine drafts."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from peagle.serve.replica.draft_usage import count_drafts, tell_drafts

# Accepted draft tokens by step, and the number drafted in each.
STEPS = {0: [2, 0, 3], 1: [1]}
DRAFTED = 3


def part(index: int, text: str, drafts: bool | None) -> Any:
    """A part of a choice; the last part has counts if `drafts`."""
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.metrics.stats import RequestSpecDecodeMetrics

    counts = RequestSpecDecodeMetrics.new(DRAFTED)
    for accepted in STEPS[index]:
        counts.observe(DRAFTED, accepted)
    completion = CompletionOutput(
        index, text, [7], None, None, finish_reason="length" if drafts is not None else None,
        spec_decode_metrics=counts if drafts else None,
    )  # fmt: skip
    return RequestOutput("r", None, [1], None, [completion], finished=drafts is not None)


async def asked(choices: int, drafts: bool, reply_of: Any) -> list[Any]:
    """Return the replies to a request; the engine's client generates a part and the end of each choice."""

    async def generate(request_id: str) -> AsyncGenerator[Any, None]:
        for index in range(choices):
            yield part(index, "a", None)
            yield part(index, "b", drafts)

    counted = count_drafts(generate)

    async def replies() -> AsyncGenerator[Any, None]:
        outputs = [output async for output in counted("r")]
        for reply in reply_of(outputs):
            yield reply

    return [reply async for reply in tell_drafts(replies())]


def events(usage: bool) -> list[str]:
    first = 'data: {"id":"é","choices":[{"index":0,"text":"\\"choices\\":[]"}]}\n\n'
    last = 'data: {"id":"é","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":4}}\n\n'
    return [first, *([last] if usage else []), "data: [DONE]\n\n"]


@pytest.mark.parametrize(("choices", "told"), [(1, (9, 5)), (2, (12, 6))])
async def test_a_stream_s_last_usage_has_the_sum_over_its_choices(choices: int, told: tuple[int, int]) -> None:
    first, last, done = await asked(choices, True, lambda _: events(True))
    assert [first, done] == events(False)
    assert '"choices":[]' in last
    assert json.loads(last.removeprefix("data: ")) == {
        "id": "é",
        "choices": [],
        "usage": {
            "prompt_tokens": 1,
            "completion_tokens": 4,
            "speculation": {"drafted_tokens": told[0], "accepted_tokens": told[1]},
        },
    }


async def test_what_has_no_usage_and_an_engine_that_drafts_nothing_are_left_as_they_are() -> None:
    assert await asked(1, True, lambda _: events(False)) == events(False)
    assert await asked(1, False, lambda _: events(True)) == events(True)


async def test_a_whole_answer_keeps_its_counts_on_the_way_to_the_client() -> None:
    import pickle

    from vllm.entrypoints.openai.completion.protocol import CompletionResponse
    from vllm.entrypoints.serve.engine.protocol import UsageInfo

    usage = UsageInfo(prompt_tokens=1, completion_tokens=2, total_tokens=3)
    (answer,) = await asked(1, True, lambda _: [CompletionResponse(model="m", choices=[], usage=usage)])
    sent = json.loads(pickle.loads(pickle.dumps(answer)).model_dump_json())
    assert sent["usage"]["speculation"] == {"drafted_tokens": 9, "accepted_tokens": 5}
    assert sent["usage"]["completion_tokens"] == 2


async def test_a_stream_that_is_left_ends_what_the_engine_generates() -> None:
    ended = []

    async def generate() -> AsyncGenerator[Any, None]:
        try:
            yield part(0, "a", None)
            yield part(0, "b", True)
        finally:
            ended.append(True)

    async def replies() -> AsyncGenerator[Any, None]:
        outputs = count_drafts(generate)()
        try:
            async for _ in outputs:
                yield events(False)[0]
        finally:
            await outputs.aclose()

    told = tell_drafts(replies())
    await anext(told)
    await told.aclose()
    assert ended


async def test_what_no_request_asked_for_is_not_counted() -> None:
    async def generate() -> AsyncGenerator[int, None]:
        yield 1

    assert [output async for output in count_drafts(generate)()] == [1]


NAMED = (
    ("response.completed", {"response": {"usage": {"output_tokens": 4}}}, ("response", "usage")),
    ("message_delta", {"usage": {"output_tokens": 4}}, ("usage",)),
)


@pytest.mark.parametrize(("name", "data", "where"), NAMED, ids=["response", "message"])
async def test_streams_whose_events_have_names_tell_it_where_they_tell_usage(
    name: str, data: dict[str, Any], where: tuple[str, ...]
) -> None:
    delta = 'event: response.output_text.delta\ndata: {"delta":"usage: é"}\n\n'
    first, last = await asked(1, True, lambda _: [delta, f"event: {name}\ndata: {json.dumps(data)}\n\n"])
    assert first == delta
    head, _, body = last.partition("\ndata: ")
    told: Any = json.loads(body)
    for key in where:
        told = told[key]
    assert (head, told["speculation"]["drafted_tokens"]) == (f"event: {name}", 9)


async def test_a_whole_answer_of_another_api_tells_it_too() -> None:
    (answer,) = await asked(1, True, lambda _: [{"usage": {"output_tokens": 4}}])
    assert answer["usage"]["speculation"] == {"drafted_tokens": 9, "accepted_tokens": 5}
