"""Every route with a prompt has the same limits, and a large body is parsed outside the event loop."""

import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from peagle.api.api_settings import ApiSettings
from peagle.api.body import INLINE_BYTES, read_request
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
ROUTES = ("chat", "completions", "tokenize", "detokenize")
CONTEXT = 1024


def application() -> FastAPI:
    """The real routes of an ingress with a model card but without replicas."""
    app, ingress = build_http(ApiSettings()), PeagleIngress.__new__(PeagleIngress)
    ingress._model_cards = {"m": SimpleNamespace(metadata={"max_request_context_length": CONTEXT})}
    for name in ROUTES:
        ENDPOINTS[name](app)(getattr(ingress, name))
    return app


async def post(path: str, body: dict[str, Any]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application()), base_url="http://test") as http:
        return await http.post(path, json=body)


EMPTY = {"role": "user", "content": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"messages": [EMPTY] * 5000}, "messages"),
        (TOKENIZE, {"messages": [EMPTY] * 5000}, "messages"),
        (COMPLETIONS, {"prompt": "x", "n": 128}, "n"),
        (COMPLETIONS, {"prompt": "x" * 300_000}, "prompt"),
        (TOKENIZE, {"prompt": "x" * 300_000}, "prompt"),
        (DETOKENIZE, {"tokens": [1] * 300_000}, "tokens"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_every_route_refuses_what_is_beyond_a_bound(path: str, body: dict[str, Any], param: str) -> None:
    for named in ({}, {"model": "m"}):
        answer = await post(path, body | named)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_large_body_is_parsed_beside_the_event_loop() -> None:
    app = FastAPI()
    parsed_in: list[str] = []

    async def route(request: Request) -> None:
        await read_request(request, ApiSettings(), lambda data: parsed_in.append(threading.current_thread().name))

    app.post("/")(route)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        await http.post("/", json={"prompt": "x"})
        await http.post("/", json={"prompt": "x" * INLINE_BYTES})
    here = threading.current_thread().name
    assert parsed_in[0] == here
    assert parsed_in[1] != here
