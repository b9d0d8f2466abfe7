"""Unmodified clients of other APIs against the real platform: Responses, Messages, and LangChain."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic import Anthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI

from support.platforms.served import Served
from support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

PROMPT = "import os\n\ndef remove(path):"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["file", "folder"]}},
    "required": ["kind"],
    "additionalProperties": False,
}
# Anthropic's client no longer has a default temperature.
GREEDY: dict[str, Any] = {"extra_body": {"temperature": 0}}
KINDS = ({"kind": "file"}, {"kind": "folder"})


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0, timeout=300) as openai_client:
        yield openai_client


@pytest.fixture(scope="module")
def claude(served: Served) -> Iterator[Anthropic]:
    with Anthropic(base_url=served.url, api_key="unused", max_retries=0, timeout=300) as anthropic_client:
        yield anthropic_client


def counted(served: Served, outcome: str = "ok") -> float:
    """Count the model requests with this outcome, in all ingress processes."""
    text = httpx.get(f"{served.url}/metrics", timeout=60).raise_for_status().text
    rows = [line for line in text.splitlines() if line.startswith("peagle_requests_total") and f'"{outcome}"' in line]
    return sum(float(row.rpartition(" ")[2]) for row in rows)


def test_a_response_is_text_and_counts_its_tokens(client: OpenAI, served: Served) -> None:
    answer = client.responses.create(
        model=served.model, instructions="Write Python.", input=PROMPT, max_output_tokens=12, temperature=0
    )
    assert (answer.object, answer.model, answer.status) == ("response", served.model, "incomplete")
    assert answer.output_text
    usage: Any = answer.usage
    assert usage.output_tokens == 12
    assert usage.total_tokens == usage.input_tokens + 12
    assert usage.input_tokens_details.cached_tokens >= 0
    assert 0 <= usage.speculation["accepted_tokens"] <= usage.speculation["drafted_tokens"]


def test_a_streamed_response_is_the_same_text(client: OpenAI, served: Served) -> None:
    turns: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "import os"}]},
        {"role": "assistant", "content": "import sys"},
        {"role": "user", "content": PROMPT},
    ]
    asked: Any = {"model": served.model, "input": turns, "max_output_tokens": 24, "temperature": 0}
    before = counted(served)
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert [events[0].type, events[1].type, events[-1].type] == [
        *("response.created", "response.in_progress", "response.completed")
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text
    last: Any = events[-1]
    assert last.response.usage.output_tokens == 24
    assert last.response.usage.speculation["drafted_tokens"] >= 0
    eventually(lambda: counted(served) == before + 2)


def test_a_response_calls_a_tool_that_it_must_and_takes_its_result(client: OpenAI, served: Served) -> None:
    tools: Any = [{"type": "function", "name": "make", "parameters": PARAMETERS, "strict": True}]
    asked: Any = {"model": served.model, "tools": tools, "max_output_tokens": 64, "temperature": 0}
    choice: Any = {"type": "function", "name": "make"}
    first = client.responses.create(**asked, input=PROMPT, tool_choice=choice)
    call: Any = next(item for item in first.output if item.type == "function_call")
    assert (call.name, json.loads(call.arguments) in KINDS) == ("make", True)
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "made"}
    turns: Any = [{"role": "user", "content": PROMPT}, call, result]
    assert client.responses.create(**asked, input=turns, tool_choice="none").output_text


def test_a_response_is_of_the_form_that_is_asked_for(client: OpenAI, served: Served) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "entry", "schema": PARAMETERS, "strict": True}}
    answer = client.responses.create(model=served.model, input=PROMPT, text=form, max_output_tokens=64, temperature=0)
    assert json.loads(answer.output_text) in KINDS


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": 5}, "input"),
        ({"temperature": 9}, "temperature"),
        ({"input": "import os\n" * 5000}, "input"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "banana"}}}}, "text.format"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_a_response_cannot_have_is_refused_by_name(
    client: OpenAI, served: Served, fields: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{"model": served.model, "input": PROMPT, "stream": stream, **fields})
    assert refused.value.param == param


def test_a_stored_response_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="this server stores no responses"):
        client.responses.retrieve("resp_1")


def message(text: str = PROMPT) -> Any:
    return [{"role": "user", "content": text}]


def test_a_message_is_text_and_counts_its_tokens(claude: Anthropic, served: Served) -> None:
    asked: Any = {"model": served.model, "system": "Write Python.", "messages": message()}
    answer = claude.messages.create(**asked, max_tokens=12, **GREEDY)
    assert (answer.type, answer.role, answer.stop_reason) == ("message", "assistant", "max_tokens")
    assert answer.id.startswith("msg_")
    assert [block.type for block in answer.content] == ["text"]
    assert answer.usage.output_tokens == 12
    usage: Any = answer.usage
    assert usage.speculation["drafted_tokens"] >= 0
    known = claude.messages.count_tokens(**asked).input_tokens
    assert known == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)


def test_a_streamed_message_is_the_same_text(claude: Anthropic, served: Served) -> None:
    asked: Any = {"model": served.model, "messages": message(), "max_tokens": 24, **GREEDY}
    before = counted(served)
    whole: Any = claude.messages.create(**asked).content[0]
    with claude.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        last = stream.get_final_message()
    assert len(pieces) > 1
    assert "".join(pieces) == whole.text
    assert (last.stop_reason, last.usage.output_tokens) == ("max_tokens", 24)
    eventually(lambda: counted(served) == before + 2)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_a_message_calls_a_tool_that_it_must(claude: Anthropic, served: Served, streamed: bool) -> None:
    tools: Any = [{"name": "make", "input_schema": PARAMETERS}]
    asked: Any = {"model": served.model, "messages": message(), "tools": tools, "max_tokens": 64, **GREEDY}
    asked["tool_choice"] = {"type": "tool", "name": "make"}
    if streamed:
        with claude.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = claude.messages.create(**asked)
    call: Any = next(block for block in answer.content if block.type == "tool_use")
    assert (call.name, call.input in KINDS) == ("make", True)
    turns = [
        *message(),
        {"role": "assistant", "content": [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "made"}]},
    ]
    after: Any = claude.messages.create(model=served.model, messages=turns, max_tokens=8, **GREEDY)
    assert after.content[0].type == "text"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"temperature": 9}}, "temperature"),
        ({"messages": message("import os\n" * 5000)}, "length"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, r"tools\[0\]\.type"),
        ({"messages": [{"role": "user", "content": None}]}, r"messages\[0\]\.content"),
    ],
    ids=["max_tokens", "temperature", "length", "tool", "content"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_what_a_message_cannot_have_is_refused_as_anthropic_does(
    claude: Anthropic, served: Served, fields: dict[str, Any], named: str, stream: bool
) -> None:
    asked = {"model": served.model, "messages": message(), "max_tokens": 4, "stream": stream, **fields}
    with pytest.raises(anthropic.BadRequestError, match=named) as refused:
        claude.messages.create(**asked)
    body: Any = refused.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="nothing", messages=message(), max_tokens=4)


NAMED: Any = {"type": "function", "function": {"name": "make"}}


# The grammar allows many calls of any tool, and this small model runs out of tokens before it ends one: read streamed.
@pytest.mark.parametrize(
    ("choice", "streamed"),
    [(NAMED, False), (NAMED, True), ("required", True)],
    ids=["one", "one streamed", "any streamed"],
)
def test_a_chat_calls_a_tool_that_it_must(client: OpenAI, served: Served, choice: Any, streamed: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": "make", "parameters": PARAMETERS}}]
    asked: Any = {"model": served.model, "messages": message(), "tools": tools, "max_tokens": 96, "temperature": 0}
    asked |= {"tool_choice": choice, "parallel_tool_calls": False}
    if streamed:
        deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(**asked, stream=True)]
        calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
        assert [call.name for call in calls if call.name] == ["make"]
        arguments = "".join(call.arguments or "" for call in calls)
    else:
        (call,) = client.chat.completions.create(**asked).choices[0].message.tool_calls
        assert call.function.name == "make"
        arguments = call.function.arguments
    assert json.loads(arguments) in KINDS


def test_a_chat_may_call_a_tool_and_need_not(client: OpenAI, served: Served) -> None:
    tools: Any = [{"type": "function", "function": {"name": "make", "parameters": PARAMETERS}}]
    asked: Any = {"model": served.model, "messages": message(), "tools": tools, "max_tokens": 8, "temperature": 0}
    answer = client.chat.completions.create(**asked)
    assert answer.choices[0].message.content or answer.choices[0].message.tool_calls


def test_langchain_chats_streams_and_calls_tools(served: Served) -> None:
    @tool
    def make(kind: str) -> str:
        """Make something."""
        return f"made {kind}"

    model = ChatOpenAI(base_url=f"{served.url}/v1", api_key="unused", model=served.model, max_tokens=64, temperature=0)
    whole = model.invoke(PROMPT)
    assert whole.content
    assert "".join(str(chunk.content) for chunk in model.stream(PROMPT)) == whole.content
    assert whole.usage_metadata is not None
    calls = model.bind_tools([make], tool_choice="make").invoke([HumanMessage(PROMPT)]).tool_calls
    assert calls[0]["name"] == "make"
    assert isinstance(calls[0]["args"]["kind"], str)


def test_an_answer_is_named_after_its_request(client: OpenAI, claude: Anthropic, served: Served) -> None:
    asked: Any = {"model": served.model, "extra_headers": {"x-request-id": "billing-7"}}
    answers: list[Any] = [
        client.chat.completions.create(messages=message(), max_tokens=2, **asked),
        client.completions.create(prompt=PROMPT, max_tokens=2, **asked),
        claude.messages.create(messages=message(), max_tokens=2, **asked),
        client.responses.create(input=PROMPT, max_output_tokens=2, **asked),
    ]
    for answer, kind in zip(answers, ("chatcmpl-", "cmpl-", "msg_", "resp_"), strict=True):
        assert answer.id.startswith(f"{kind}billing-7-")


def test_a_prompt_that_was_cached_is_told_so(client: OpenAI, served: Served) -> None:
    asked: Any = {"model": served.model, "prompt": PROMPT * 60, "max_tokens": 1, "temperature": 0}
    told = [client.completions.create(**asked).usage for _ in range(4)]
    details = [usage.prompt_tokens_details for usage in told if usage is not None]
    assert any(detail is not None and (detail.cached_tokens or 0) > 0 for detail in details)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score"])
def test_models_that_generate_text_do_nothing_else(served: Served, path: str) -> None:
    answer = httpx.post(f"{served.url}{path}", json={"model": served.model, "input": "x"}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/metrics"])
def test_a_slash_at_the_end_and_head_change_nothing(served: Served, path: str) -> None:
    assert httpx.get(f"{served.url}{path}/", timeout=60).status_code == 200
    head = httpx.head(f"{served.url}{path}", timeout=60)
    assert (head.status_code, head.content) == (200, b"")
