"""Routes that embed and score, through the real application and ingress, with fake replica answers."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from peagle.api.api_settings import ApiSettings
from peagle.api.dialects.pooled_request import PooledReply
from peagle.api.http_app import ENDPOINTS, RERANK, SCORE, build_http
from peagle.api.ingress import PeagleIngress
from peagle.config import Deployment, parse_deployment

USAGE = {"prompt_tokens": 3, "total_tokens": 3}
BODY = b'{"data":[1.0],"usage":{"prompt_tokens":3,"total_tokens":3}}'
CHAT = {"messages": [{"role": "user", "content": "x"}]}
EMBED, RANK, PAIR = {"input": "x"}, {"query": "x", "documents": ["y"]}, {"text_1": "x", "text_2": "y"}
BOTH = (*((path, RANK) for path in RERANK), *((path, PAIR) for path in SCORE))


class Answers:
    """Serve's response to one call."""

    def __init__(self) -> None:
        self._left: list[Any] = [PooledReply(usage=USAGE, body=BODY)]

    async def __anext__(self) -> Any:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()

    def cancel(self) -> None:
        pass


def deployment(name: str) -> Deployment:
    pools = name.startswith("pools")
    kind = {"engine": {"runner": "pooling"}} if pools else {"speculation": {"enabled": False}}
    return parse_deployment({"name": name, "target": {"source": "org/t"}, **kind}, "x.yaml")


class Platform:
    """The routes of an ingress in front of some models, and the calls to their replicas."""

    def __init__(self, *models: str) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.app = build_http(ApiSettings(replica_retries=0, max_inputs=4))
        deployments = {name: deployment(name) for name in models}
        cards = {name: SimpleNamespace(metadata={}) for name in models}
        ingress = PeagleIngress({name: self._handle(name) for name in models}, cards, deployments=deployments)
        ingress.app = self.app
        for name in ("embeddings", "rerank", "score", "not_generated", "chat", "responses", "messages", "models"):
            ENDPOINTS[name](self.app)(getattr(ingress, name))
        ENDPOINTS["invocations"](self.app)(ingress.invocations)

    def _handle(self, model: str) -> Any:
        def method(name: str) -> Any:
            def remote(body: Any, info: Any) -> Answers:
                self.asked.append((model, name, body))
                return Answers()

            return SimpleNamespace(remote=remote)

        handle = SimpleNamespace(**{name: method(name) for name in ("embeddings", "score", "chat")})
        handle.options = lambda **options: handle
        return handle

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        async with self._http() as http:
            return await http.post(path, json=body, headers={"x-request-id": "billing-7"})

    async def cards(self) -> Any:
        async with self._http() as http:
            return (await http.get("/v1/models")).json()["data"]

    def _http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test")


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/embeddings", EMBED, "embeddings"),
        *((path, body, "score") for path, body in BOTH),
        ("/invocations", EMBED, "embeddings"),
        ("/invocations", RANK, "score"),
    ],
)
async def test_an_answer_comes_as_the_engine_wrote_it(path: str, body: dict[str, Any], method: str) -> None:
    platform = Platform("pools")
    answer = await platform.post(path, body)
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["content-type"] == "application/json"
    ((_, asked, sent),) = platform.asked
    assert asked == method
    assert sent.fields == body
    assert sent.request_id.startswith("billing-7-")


async def test_of_several_models_the_body_names_one() -> None:
    platform = Platform("writes", "pools", "pools-too")
    for model in ("pools-too", "pools"):
        assert (await platform.post("/v1/embeddings", {**EMBED, "model": model})).status_code == 200
    assert [model for model, _, _ in platform.asked] == ["pools-too", "pools"]
    answer = await platform.post("/v1/embeddings", EMBED)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert [card.get("task") for card in await platform.cards()] == [None, "pooling", "pooling"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {**CHAT, "max_tokens": 4}),
        ("/invocations", CHAT),
    ],
)
async def test_a_model_that_embeds_is_not_asked_to_write(path: str, body: dict[str, Any]) -> None:
    platform = Platform("writes", "pools")
    answer = await platform.post(path, {**body, "model": "pools"})
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["message"] == "pools embeds or scores text only: use /v1/embeddings, /v1/rerank or /v1/score."
    assert path == "/v1/messages" or (error["code"], error["param"]) == ("unsupported_operation", "model")
    assert platform.asked == []


@pytest.mark.parametrize("path", ["/v1/embeddings", *RERANK, *SCORE])
async def test_a_model_that_writes_is_not_asked_to_embed(path: str) -> None:
    body = {**EMBED, **RANK, **PAIR, "model": "writes"}
    alone, beside = await Platform("writes").post(path, body), await Platform("writes", "pools").post(path, body)
    writes = "text only: use /v1/chat/completions, /v1/completions, /v1/responses or /v1/messages."
    assert alone.json()["error"]["message"] == f"The models served here generate {writes}"
    assert beside.json()["error"]["message"] == f"writes generates {writes}"
    for answer in (alone, beside):
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (("pools",), ["embed or score"]),
        (("writes",), ["generate"]),
        (("writes", "pools"), ["generate", "embed or score"]),
    ],
)
async def test_a_route_of_no_model_here_says_what_there_is(models: tuple[str, ...], said: list[str]) -> None:
    answer = await Platform(*models).post("/v1/moderations", {"input": "x"})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 400
    assert [verb for verb in ("generate", "embed or score") if f"{verb} text only" in message] == said


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"input": ["x"] * 5}, "input"),
        ("/v1/rerank", {"query": "x", "documents": ["x"] * 5}, "documents"),
        ("/score", {"text_1": ["x"] * 5, "text_2": "x"}, "text_1"),
        ("/v1/embeddings", {"input": "x" * 300_000}, "input"),
    ],
)
async def test_texts_are_bounded(path: str, body: dict[str, Any], param: str) -> None:
    deployments = Platform("pools")
    deployments.app.state.settings = ApiSettings(max_inputs=4, max_prompt_chars=2**18)
    answer = await deployments.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
