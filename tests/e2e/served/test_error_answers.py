"""Every client error against the real platform: OpenAI's error object, and never a 5xx.

The last tests ask for one more answer, so nothing here may have hurt an engine, and look into the log.
"""

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def logged_before(served: Served) -> int:
    """Size of the log before the first client error."""
    return served.log.stat().st_size


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="unused", max_retries=0, timeout=120) as openai_client:
        yield openai_client


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body: dict[str, dict[str, Any]] = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "import os\n", "max_tokens": 4, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 4, **fields}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@pytest.mark.parametrize("raw", [b'{"model":', b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"], ids=["cut", "deep"])
def test_what_is_no_json_object(http: httpx.Client, path: str, raw: bytes) -> None:
    assert error_of(http.post(path, content=raw, headers=JSON), 400)["code"] == "invalid_json"


def test_a_body_over_the_limit(http: httpx.Client) -> None:
    body = b'{"prompt": "' + b"x" * 17 * 2**20 + b'"}'
    assert error_of(http.post(COMPLETIONS, content=body, headers=JSON), 413)["code"] == "request_too_large"


def test_an_unknown_model(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nothing", messages=[{"role": "user", "content": "x"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_an_adapter_of_a_known_model_is_unknown(http: httpx.Client, served: Served) -> None:
    error = error_of(http.post(COMPLETIONS, json=completion(model=f"{served.model}:adapter")), 404)
    assert error["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/nothing", "/console", "/v1", "/docs", "/openapi.json", "/v1/chat"])
def test_an_unknown_path(http: httpx.Client, path: str) -> None:
    assert error_of(http.get(path), 404)["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("method", "path"), [("GET", CHAT), ("GET", CHAT + "/"), ("PUT", COMPLETIONS), ("DELETE", "/v1/models")]
)
def test_a_method_that_is_not_allowed(http: httpx.Client, method: str, path: str) -> None:
    answer = http.request(method, path)
    assert error_of(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"]


STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@STREAMED
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 10**6}, "n"),
        ({"n": 10**30}, None),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**70}, None),
        ({"top_k": 2**70}, None),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 10_000}, "stop"),
        ({"logprobs": 1000}, "logprobs"),
        ({"logprobs": -3}, "logprobs"),
        ({"logprobs": "x"}, "logprobs"),
        ({"presence_penalty": 9}, "presence_penalty"),
        ({"stop_token_ids": [10**9]}, "stop_token_ids"),
        ({"allowed_token_ids": [10**9]}, "allowed_token_ids"),
        ({"logit_bias": {"x": 1}}, None),
        ({"stream_options": 5}, "stream_options"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, None),
        ({"prompt": [[]]}, None),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1, 10**9]}, None),
        ({"prompt": [-1]}, None),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 5}, "best_of"),
        ({"kv_transfer_params": {"prompt_token_ids": "x"}}, "kv_transfer_params"),
        ({"structured_outputs": {"regex": "(["}}, None),
        ({"structured_outputs": {"choice": []}}, None),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, None),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_field_of_a_completion(http: httpx.Client, fields: dict[str, Any], param: str | None, stream: bool) -> None:
    error = error_of(http.post(COMPLETIONS, json=completion(stream=stream, **fields)), 400)
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert (error["param"] or "").split("[")[0] == param


def test_a_limit_beyond_the_vocabulary_is_no_limit(http: httpx.Client) -> None:
    same = [http.post(COMPLETIONS, json=completion(seed=1, top_k=top_k)) for top_k in (0, 2**62)]
    assert [answer.status_code for answer in same] == [200, 200]
    assert same[0].json()["choices"][0]["text"] == same[1].json()["choices"][0]["text"]


@STREAMED
@pytest.mark.parametrize("grammar", ["root ::=", "root ::= root"], ids=["empty", "endless"])
def test_a_grammar_that_allows_no_text_gives_none_or_is_refused(http: httpx.Client, grammar: str, stream: bool) -> None:
    """vLLM answers some of these with an empty text and refuses others; neither may be a server error."""
    answer = http.post(COMPLETIONS, json=completion(stream=stream, structured_outputs={"grammar": grammar}))
    if answer.status_code == 400:
        assert error_of(answer, 400)["param"] in (None, "structured_outputs")
    elif stream:
        assert (answer.status_code, answer.text.splitlines()[-2]) == (200, "data: [DONE]")
        assert '"error"' not in answer.text
    else:
        assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, "")


# Each token takes longer with the number of ways to parse the text: 0.2 ms at first, 50 ms after some hundred tokens.
LATE = 'root ::= a "~"\na ::= b a | b\nb ::= c b | c\nc ::= [ab] c | [ab]'


def test_a_grammar_that_becomes_slow_ends_its_own_request(http: httpx.Client) -> None:
    asked = completion(max_tokens=800, temperature=0, structured_outputs={"grammar": LATE})
    with ThreadPoolExecutor(1) as beside:
        other = beside.submit(http.post, COMPLETIONS, json=completion(max_tokens=400, ignore_eos=True))
        streamed = http.post(COMPLETIONS, json={**asked, "stream": True})
    assert streamed.status_code == 200
    *pieces, last = (json.loads(each) for each in re.findall(r"^data: (\{.*)$", streamed.text, re.MULTILINE))
    text = "".join(piece["choices"][0]["text"] for piece in pieces)
    assert len(text) > 32
    assert set(text) <= set("ab")
    whole = error_of(http.post(COMPLETIONS, json=asked), 400)
    for error in (last["error"], whole):
        assert "more than 50 ms to follow for one token" in error["message"]
        assert error["param"] == "structured_outputs"
    assert other.result().json()["usage"]["completion_tokens"] == 400
    counted = re.findall(r"^peagle_replica_slow_grammars_total\{.*\} (\S+)$", http.get("/metrics").text, re.MULTILINE)
    assert sum(map(float, counted)) >= 1


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


@STREAMED
@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": "hello"},
        {"messages": [5]},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": 5, "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": [{"type": "nothing"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://[::1]/x"}}]}]},
        {"messages": [{"role": "assistant", "tool_calls": 5}]},
        {"top_logprobs": 100, "logprobs": True},
        {"tools": 5},
        {"tools": [{"type": "function", "function": {}}]},
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        schema({"type": "banana"}),
        schema({"type": "object", "properties": 5}),
        schema({"$ref": "#/nowhere"}),
        schema({"type": "string", "pattern": "([a-z"}),
        schema({"type": "string", "minLength": -1}),
        schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        {"chat_template": "{{ 1 / 0 }}"},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_a_field_of_a_chat(http: httpx.Client, fields: dict[str, Any], stream: bool) -> None:
    error = error_of(http.post(CHAT, json=chat(stream=stream, **fields)), 400)
    assert error["type"] == "invalid_request_error"


@STREAMED
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "import os\n" * 5000}, "prompt"),
        (COMPLETIONS, {"prompt": [5] * 5000}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "import os\n" * 5000}]}, "messages"),
    ],
    ids=["text", "tokens", "chat"],
)
def test_a_prompt_longer_than_the_context(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    error = error_of(http.post(path, json={"max_tokens": 4, "stream": stream, **fields}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TOKENIZE, {}),
        (TOKENIZE, {"prompt": 5}),
        (TOKENIZE, {"messages": [{"role": "user", "content": [{"type": "nothing"}]}]}),
        (DETOKENIZE, {}),
        (DETOKENIZE, {"tokens": "abc"}),
        (DETOKENIZE, {"tokens": [-1]}),
        (DETOKENIZE, {"tokens": [2**63 - 1]}),
    ],
)
def test_a_field_of_the_tokenizer(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    assert error_of(http.post(path, json=body), 400)["type"] == "invalid_request_error"


def test_headers_cannot_steer_the_engine(http: httpx.Client) -> None:
    headers = {"x-data-parallel-rank": "7", "x-session-id": "s" * 5000, "x-request-id": "r" * 5000}
    assert http.post(COMPLETIONS, json=completion(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        ("x-request-id", b"\xe9"),
        ("x-request-timeout-seconds", b"\xff"),
        ("x-request-timeout-seconds", b"0.001"),
        ("serve_multiplexed_model_id", b"adapter"),
        ("serve-multiplexed-model-id", b"adapter"),
    ],
)
def test_headers_cannot_steer_the_proxy(http: httpx.Client, header: tuple[str, bytes]) -> None:
    assert http.post(COMPLETIONS, json=completion(), headers=dict([header])).status_code == 200


def test_an_answer_carries_a_request_id(http: httpx.Client) -> None:
    assert len(http.get("/v1/nothing").headers.get_list("x-request-id")) == 1


def test_after_all_that_every_replica_still_answers(http: httpx.Client, served: Served) -> None:
    assert http.get("/health").json()["replicas"] == {served.model: served.replicas}
    assert http.post(COMPLETIONS, json=completion()).status_code == 200


def test_no_mistake_left_a_traceback(served: Served, logged_before: int) -> None:
    """No process logs an error: the log has the output of all of them, after a moment."""
    time.sleep(2.0)
    lines = served.log.read_bytes()[logged_before:].decode(errors="replace").splitlines()
    assert [line for line in lines if "Traceback" in line] == []
    assert [
        line for line in lines if " ERROR " in line and "EngineCore" not in line and "failed with an" not in line
    ] == []
