"""Every feature of the OpenAI API, with the `openai` client, against the real platform."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

from support.platforms.served import Served
from support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

PROMPT = "def read_lines(path):"
CHAT: Any = [{"role": "user", "content": "import os\n\ndef remove(path):"}]
# Long enough that they still run when a test looks, even if that is late. Each is within the model's context.
LONG, ANSWERS = 800, 8


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0, timeout=300) as openai:
        yield openai


def test_models_are_listed_and_found_by_name(client: OpenAI, served: Served) -> None:
    assert [model.id for model in client.models.list()] == [served.model]
    model = client.models.retrieve(served.model)
    assert (model.id, model.object, model.owned_by) == (served.model, "model", "peagle")
    assert model.created > 0


def test_a_completion_counts_its_tokens(client: OpenAI, served: Served) -> None:
    answer = client.completions.create(model=served.model, prompt=PROMPT, max_tokens=12, temperature=0)
    assert answer.object == "text_completion"
    assert answer.model == served.model
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_chat_answers_as_the_assistant(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model=served.model, messages=CHAT, max_tokens=12, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12


def test_a_conversation_has_system_and_earlier_turns(client: OpenAI, served: Served) -> None:
    turns: Any = [
        {"role": "system", "content": "Write Python."},
        {"role": "user", "content": "import os"},
        {"role": "assistant", "content": "import sys"},
        {"role": "user", "content": [{"type": "text", "text": "import re"}]},
    ]
    long = client.chat.completions.create(model=served.model, messages=turns, max_tokens=1, temperature=0)
    short = client.chat.completions.create(model=served.model, messages=turns[-1:], max_tokens=1, temperature=0)
    assert long.usage is not None
    assert short.usage is not None
    assert long.usage.prompt_tokens > short.usage.prompt_tokens


def test_a_streamed_chat_is_the_same_text_and_counts_the_same(client: OpenAI, served: Served) -> None:
    asked: Any = {"model": served.model, "messages": CHAT, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_streamed_completion_is_the_same_text_in_several_pieces(client: OpenAI, served: Served) -> None:
    asked: Any = {"model": served.model, "prompt": PROMPT, "max_tokens": 48, "temperature": 0}
    whole = client.completions.create(**asked)
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert len(chunks) > 3
    assert all(chunk.usage is None for chunk in chunks)


def test_text_ends_before_a_stop_string(client: OpenAI, served: Served) -> None:
    asked: Any = {"model": served.model, "prompt": PROMPT, "max_tokens": 32, "temperature": 0}
    text = client.completions.create(**asked).choices[0].text
    stop = text[len(text) // 2 :][:3]
    choice = client.completions.create(**asked, stop=[stop]).choices[0]
    assert choice.text == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    chunks = list(client.completions.create(**asked, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text


def test_a_seed_repeats(client: OpenAI, served: Served) -> None:
    def sample(seed: int) -> str:
        return (
            client.completions.create(model=served.model, prompt=PROMPT, max_tokens=48, temperature=0.9, seed=seed)
            .choices[0]
            .text
        )

    assert sample(7) == sample(7)
    assert len({sample(seed) for seed in (1, 2, 3)}) > 1


def test_n_choices_come_in_one_answer(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model=served.model, messages=CHAT, n=3, max_tokens=24, temperature=1.2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_several_prompts_are_completed_in_order(client: OpenAI, served: Served) -> None:
    prompts = ["import os\n", "class Reader:\n"]
    asked: Any = {"model": served.model, "max_tokens": 8, "temperature": 0, "extra_body": {"echo": True}}
    answer = client.completions.create(prompt=prompts, **asked)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert [choice.text.startswith(prompt) for choice, prompt in zip(answer.choices, prompts, strict=True)] == [
        True
    ] * 2


def test_chat_logprobs_cover_every_token(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=served.model, messages=CHAT, max_tokens=8, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    tokens = logprobs.content
    assert tokens is not None
    assert answer.usage is not None
    assert len(tokens) == answer.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0
        # Greedy decoding takes the most likely token.
        assert token.logprob == max(other.logprob for other in token.top_logprobs)
        assert len(token.top_logprobs) == 3


def test_completion_logprobs_and_echo_cover_the_prompt(client: OpenAI, served: Served) -> None:
    answer = client.completions.create(
        model=served.model, prompt=PROMPT, max_tokens=4, temperature=0, logprobs=2, echo=True
    )
    choice = answer.choices[0]
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs is not None
    assert answer.usage is not None
    tokens, values = choice.logprobs.tokens, choice.logprobs.token_logprobs
    assert tokens is not None
    assert values is not None
    assert len(tokens) == answer.usage.total_tokens
    assert values[0] is None
    assert all(value <= 0 for value in values[1:])


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["file", "folder"]}, "depth": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "depth"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_schema_output_is_valid(client: OpenAI, served: Served, temperature: float) -> None:
    answer = client.chat.completions.create(
        model=served.model,
        messages=CHAT,
        max_tokens=200,
        temperature=temperature,
        seed=1,
        response_format={"type": "json_schema", "json_schema": {"name": "entry", "schema": SCHEMA, "strict": True}},
    )
    assert answer.choices[0].finish_reason == "stop"
    value = json.loads(answer.choices[0].message.content or "")
    assert set(value) == {"kind", "depth"}
    assert value["kind"] in ("file", "folder")
    assert value["depth"] in range(10)


def test_json_object_output_begins_an_object(client: OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=served.model, messages=CHAT, max_tokens=32, temperature=0, response_format={"type": "json_object"}
    )
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


def test_choices_constrain_a_completion(client: OpenAI, served: Served) -> None:
    answer = client.completions.create(
        model=served.model,
        prompt="def is_open(self):\n    return ",
        max_tokens=16,
        temperature=0,
        extra_body={"structured_outputs": {"choice": ["True", "False"]}},
    )
    assert answer.choices[0].text in ("True", "False")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_request_may_bound_its_drafts_and_is_told_of_them(
    client: OpenAI, served: Served, n: int, streamed: bool
) -> None:
    def ask(create: Any, bound: int | None, **prompt: Any) -> Any:
        extra = {"ignore_eos": True, **({} if bound is None else {"speculation": {"depth_max": bound}})}
        options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        answer = create(model=served.model, max_tokens=24, temperature=0.8, n=n, extra_body=extra, **prompt, **options)
        if streamed:
            *chunks, answer = answer
            assert all(chunk.usage is None for chunk in chunks)
        assert answer.usage.completion_tokens == 24 * n * (len(prompt["prompt"]) if "prompt" in prompt else 1)
        return answer

    asks: list[tuple[Any, dict[str, Any]]] = [
        (client.chat.completions.create, {"messages": CHAT}),
        (client.completions.create, {"prompt": [PROMPT, "import os\n"]}),
    ]
    drafted = dict.fromkeys((None, 0, 2), 0)
    for create, prompt in asks:
        for bound in drafted:
            answer = ask(create, bound, **prompt)
            told = answer.usage.speculation
            assert 0 <= told["accepted_tokens"] <= told["drafted_tokens"]
            assert told["accepted_tokens"] <= answer.usage.completion_tokens + 7 * 2 * n
            drafted[bound] += told["drafted_tokens"]
            if bound == 2 and n == 1 and "messages" in prompt:
                counts = answer.metrics["speculative_decoding"]
                assert told["drafted_tokens"] == counts["num_draft_tokens"] <= 2 * counts["num_spec_steps"]
    assert drafted[0] == 0
    assert drafted[None] + drafted[2] > 0


@pytest.mark.parametrize("own", [{"logit_bias": {"5": -50}}, {"min_p": 0.2}], ids=["bias", "min_p"])
def test_parameters_that_no_draft_is_judged_by_are_served_without_drafts(
    client: OpenAI, served: Served, own: dict[str, Any]
) -> None:
    extra = {**own, "ignore_eos": True}
    answer: Any = client.completions.create(model=served.model, prompt=PROMPT, max_tokens=24, extra_body=extra)
    assert answer.usage.completion_tokens == 24
    assert answer.usage.speculation == {"drafted_tokens": 0, "accepted_tokens": 0}


def test_extensions_of_vllm_are_kept(client: OpenAI, served: Served) -> None:
    answer = client.completions.create(
        model=served.model,
        prompt=PROMPT,
        max_tokens=20,
        temperature=0.8,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        extra_body={"min_tokens": 20, "ignore_eos": True, "top_k": 50, "repetition_penalty": 1.1},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20


def test_text_and_tokens_convert_both_ways(served: Served, client: OpenAI) -> None:
    with httpx.Client(base_url=served.url, timeout=60) as http:
        tokens = http.post("/tokenize", json={"model": served.model, "prompt": PROMPT}).raise_for_status().json()
        text = http.post("/detokenize", json={"model": served.model, "tokens": tokens["tokens"]}).raise_for_status()
        chat = http.post("/tokenize", json={"model": served.model, "messages": CHAT}).raise_for_status().json()
    assert tokens["count"] == len(tokens["tokens"])
    assert text.json()["prompt"] == PROMPT
    asked: Any = {"model": served.model, "max_tokens": 8, "temperature": 0}
    from_text = client.completions.create(prompt=PROMPT, **asked)
    from_tokens = client.completions.create(prompt=tokens["tokens"], **asked)
    assert from_text.choices[0].text == from_tokens.choices[0].text
    answer = client.chat.completions.create(messages=CHAT, **asked)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == chat["count"]


def test_the_only_model_need_not_be_named(served: Served) -> None:
    answer = httpx.post(f"{served.url}/v1/completions", json={"prompt": PROMPT, "max_tokens": 2}, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["model"] == served.model


def test_parallel_requests_are_all_answered_with_ids_of_their_own(client: OpenAI, served: Served) -> None:
    def ask(index: int) -> tuple[str, int]:
        # The same header on every request, as a careless client would send it.
        answer = client.completions.create(
            model=served.model,
            prompt=f"x = {index}\n",
            max_tokens=16,
            extra_headers={"x-request-id": "same"},
            extra_body={"ignore_eos": True, "request_id": "same"},
        )
        assert answer.usage is not None
        return answer.id, answer.usage.completion_tokens

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(16)))
    assert len({identity for identity, _ in answers}) == 16
    assert {tokens for _, tokens in answers} == {16}


def total(served: Served, field: str) -> int:
    return int(sum(row[field] for row in served.fleet()))


def idle(served: Served) -> bool:
    return total(served, "running_requests") == total(served, "waiting_requests") == 0


async def ask_until(served: Served, body: dict[str, Any], holds: Callable[[], bool]) -> None:
    """Ask, and close the connection once something holds."""
    async with httpx.AsyncClient(base_url=served.url, timeout=60) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=body))
        await asyncio.to_thread(eventually, holds)
        assert asking.cancel(), "it was answered before"


@pytest.mark.parametrize("streamed", [True, False])
def test_a_request_that_its_client_has_left_stops_costing(served: Served, streamed: bool) -> None:
    served.complete()  # the first request takes longer to come to the engine
    eventually(lambda: idle(served))
    before = total(served, "generation_tokens")
    body = {"model": served.model, "prompt": PROMPT, "max_tokens": LONG, "n": ANSWERS, "ignore_eos": True}
    body["stream"] = streamed
    if streamed:
        with httpx.stream("POST", f"{served.url}/v1/completions", json=body, timeout=60) as answer:
            assert next(answer.iter_lines())
    else:
        asyncio.run(ask_until(served, body, lambda: total(served, "generation_tokens") > before))
    eventually(lambda: idle(served))
    spent = total(served, "generation_tokens") - before
    assert 0 < spent < LONG * ANSWERS
    time.sleep(1)
    assert total(served, "generation_tokens") - before == spent


def test_health_counts_the_replicas_that_answer(served: Served) -> None:
    answer = httpx.get(f"{served.url}/health", timeout=60)
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "replicas": {served.model: served.replicas}}


def test_metrics_name_every_replica(served: Served) -> None:
    served.complete()
    text = httpx.get(f"{served.url}/metrics", timeout=60).raise_for_status().text
    assert f'peagle_replicas_answering{{model="{served.model}"}} {float(served.replicas)}' in text
    for row in served.fleet():
        assert f'peagle_replica_generation_tokens_total{{model="{served.model}",replica="{row["id"]}"}}' in text
    counted = r'^peagle_http_requests_total\{ingress="[^"]+",method="POST",route="/v1/completions",status="200"\} [1-9]'
    assert re.search(counted, text, re.MULTILINE)
    ended = rf'^peagle_requests_total\{{ingress="[^"]+",model="{served.model}",outcome="ok"\}} [1-9]'
    assert re.search(ended, text, re.MULTILINE)
    assert f'peagle_replicas{{model="{served.model}",state="running"}} {float(served.replicas)}' in text


def test_fleet_tells_what_is_served_from_where(served: Served) -> None:
    models = httpx.get(f"{served.url}/fleet", timeout=60).raise_for_status().json()["models"]
    assert [model["name"] for model in models] == [served.model]
    assert models[0]["target"]
    assert models[0]["drafter"]
    rows = models[0]["replicas"]
    assert len(rows) == served.replicas
    assert {row["state"] for row in rows} == {"ready"}


def test_versions_are_told(served: Served) -> None:
    versions = httpx.get(f"{served.url}/version", timeout=60).raise_for_status().json()
    assert {"version", "ray", "torch"} <= set(versions)
