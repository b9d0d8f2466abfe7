"""SageMaker's two routes through the real application and ingress, with fake replica answers."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle.api.api_settings import ApiSettings
from peagle.api.body import INLINE_BYTES, read_json
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.routes import sagemaker_routes
from peagle.api.routes.sagemaker_routes import SageMakerRoutes


def echo(kind: str) -> Any:
    async def answer(self: Any, request: Request) -> JSONResponse:
        return JSONResponse({kind: await read_json(request, request.app.state.settings)})

    return answer


class Ingress(SageMakerRoutes):
    """Answers with the called route and the body that it read."""

    chat, completions, embeddings, rerank, score = map(echo, ("chat", "completion", "embeddings", "rerank", "score"))

    def __init__(self, well: dict[str, int]) -> None:
        self._default_serve_handles = {name: name for name in well}


def client(well: dict[str, int] | None = None, **settings: Any) -> httpx.AsyncClient:
    app: FastAPI = build_http(ApiSettings(**settings))
    ingress = Ingress(well or {})
    for name in ("ping", "invocations"):
        ENDPOINTS[name](app)(getattr(ingress, name))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("chat", {"messages": [], "stream": True}),
        ("chat", {"prompt": "x", "messages": []}),
        *(("completion", {"prompt": prompt}) for prompt in ("x", ["x", "y"], [1, 2], "x" * 2 * INLINE_BYTES)),
        ("embeddings", {"input": ["x"]}),
        ("rerank", {"query": "x", "documents": ["y"]}),
        ("score", {"queries": "x", "documents": ["y"]}),
        ("score", {"text_1": "x", "text_2": "y"}),
    ],
)
async def test_what_is_asked_for_is_known_by_its_field(kind: str, body: dict[str, Any]) -> None:
    async with client() as http:
        assert (await http.post("/invocations", json=body)).json() == {kind: body}


@pytest.mark.parametrize("body", [{}, {"inputs": "x", "parameters": {}}, {"model": "m"}])
async def test_anything_else_is_told_what_to_send(body: dict[str, Any]) -> None:
    async with client() as http:
        answer = await http.post("/invocations", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == (
        "Send messages for a chat, prompt for a completion, input for embeddings, query to rerank, or queries to score."
    )


async def test_the_bounds_of_every_body_hold() -> None:
    async with client(max_body_bytes=1024) as http:
        assert (await http.post("/invocations", json={"prompt": "x" * 2000})).status_code == 413
        assert (await http.post("/invocations", content=b"{")).status_code == 415
        answer = await http.post("/invocations", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("well", "status"), [({"a": 2, "b": 1}, 200), ({"a": 2, "b": 0}, 503), ({"a": 0}, 503)], ids=str
)
async def test_a_ping_tells_whether_every_model_is_well_and_no_more(
    well: dict[str, int], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def count(handle: str, timeout_s: float) -> int:
        assert timeout_s < 2.0
        await asyncio.sleep(0)
        return well[handle]

    monkeypatch.setattr(sagemaker_routes, "count_well", count)
    async with client(well) as http:
        answer = await http.get("/ping")
    assert (answer.status_code, answer.content) == (status, b"")
