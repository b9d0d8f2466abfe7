"""An embedding model next to a generating model, called with the openai library."""

import math
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from support.engines.pooling_models import VECTOR
from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

MODEL, TEXTS = "embeds", ["import os", "def f(x):\n    return x", "x = 1"]
# Traces are tested elsewhere.
HEADERS = {"traceparent": f"00-{'1' * 32}-{'1' * 16}-00"}


@pytest.fixture(scope="module")
def client(keyed: Served) -> OpenAI:
    return OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-embeds", max_retries=0, default_headers=HEADERS)


def post(keyed: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {**HEADERS, "authorization": "Bearer sk-embeds", "x-request-id": "billing-7"}
    return httpx.post(f"{keyed.url}{path}", json=body, headers=headers, timeout=60, trust_env=False)


def test_a_text_a_list_and_tokens_are_embedded(client: OpenAI, keyed: Served) -> None:
    (one,) = client.embeddings.create(model=MODEL, input=TEXTS[0]).data
    several = client.embeddings.create(model=MODEL, input=TEXTS)
    assert [each.index for each in several.data] == [0, 1, 2]
    assert [len(each.embedding) for each in several.data] == [VECTOR] * 3
    assert several.data[0].embedding == pytest.approx(one.embedding, abs=1e-2)
    assert math.isclose(sum(x * x for x in one.embedding), 1.0, rel_tol=1e-2)
    tokens = post(keyed, "/tokenize", {"model": MODEL, "prompt": TEXTS[0]}).raise_for_status().json()["tokens"]
    (as_tokens,) = client.embeddings.create(model=MODEL, input=tokens).data
    assert as_tokens.embedding == pytest.approx(one.embedding, abs=1e-2)
    assert len(client.embeddings.create(model=MODEL, input=[tokens, tokens]).data) == 2


def test_numbers_and_base64_say_the_same(client: OpenAI, keyed: Served) -> None:
    # The library asks for base64 unless it is told otherwise.
    (coded,) = client.embeddings.create(model=MODEL, input=TEXTS[0]).data
    (plain,) = client.embeddings.create(model=MODEL, input=TEXTS[0], encoding_format="float").data
    assert coded.embedding == pytest.approx(plain.embedding, abs=1e-6)
    raw = post(keyed, "/v1/embeddings", {"model": MODEL, "input": TEXTS[0], "encoding_format": "base64"}).json()
    assert isinstance(raw["data"][0]["embedding"], str)
    assert raw["id"].startswith("embd-billing-7-")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"input": TEXTS, "dimensions": 8}, "dimensions"),
        ({"input": "x " * 600}, "maximum"),
        ({"input": []}, "at least one prompt"),
        ({"input": [10**6]}, "vocabulary"),
        ({"input": "x", "encoding_format": "bytes"}, "encoding_format"),
    ],
)
def test_what_the_model_cannot_embed_is_refused(client: OpenAI, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client.embeddings.create(model=MODEL, **fields)


def test_each_model_says_what_it_is_to_be_asked(client: OpenAI, keyed: Served) -> None:
    message: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(
        openai.BadRequestError, match="embeds embeds or scores text only: use /v1/embeddings"
    ) as refused:
        client.chat.completions.create(model=MODEL, messages=message)
    assert (refused.value.code, refused.value.param) == ("unsupported_operation", "model")
    with pytest.raises(openai.BadRequestError, match="generates text only: use /v1/chat/completions"):
        client.embeddings.create(model=keyed.model, input="x")
    tasks = {card.id: (card.model_extra or {}).get("task") for card in client.models.list()}
    assert tasks == {MODEL: "pooling", keyed.model: None}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank", "/invocations"])
def test_texts_are_ranked_by_their_vectors(keyed: Served, path: str) -> None:
    answer = post(keyed, path, {"model": MODEL, "query": TEXTS[2], "documents": TEXTS, "top_n": 2}).raise_for_status()
    ranked = answer.json()["results"]
    assert len(ranked) == 2
    assert (ranked[0]["index"], ranked[0]["document"]["text"]) == (2, TEXTS[2])
    assert ranked[0]["relevance_score"] == pytest.approx(1.0, abs=1e-2)
    assert httpx.post(f"{keyed.url}{path}", json={}, headers=HEADERS, timeout=60, trust_env=False).status_code == 401


def test_what_was_embedded_is_counted_for_its_key(client: OpenAI, keyed: Served) -> None:
    def used() -> tuple[int, int, int]:
        rows = httpx.get(f"{keyed.url}/fleet/usage", timeout=30, trust_env=False).raise_for_status().json()["clients"]
        models = [model for row in rows if row["client"] == "embeds" for model in row["models"]]
        of = [model for model in models if model["model"] == MODEL]
        return (of[0]["requests"], of[0]["prompt_tokens"], of[0]["output_tokens"]) if of else (0, 0, 0)

    before = used()
    usage = client.embeddings.create(model=MODEL, input=TEXTS).usage
    assert usage.prompt_tokens == usage.total_tokens > len(TEXTS)
    assert used() == (before[0] + 1, before[1] + usage.prompt_tokens, 0)


def test_the_fleet_tells_of_it_and_it_is_ready(keyed: Served) -> None:
    models = httpx.get(f"{keyed.url}/fleet", timeout=60, trust_env=False).raise_for_status().json()["models"]
    (row,) = [model for model in models if model["name"] == MODEL]
    (replica,) = row["replicas"]
    assert row["drafter"] is None
    assert (replica["state"], replica["generation_tokens"], replica["engine_stalls"]) == ("ready", 0, 0)
    assert httpx.get(f"{keyed.url}/health/ready", timeout=60, trust_env=False).status_code == 200
