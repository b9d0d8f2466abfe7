"""A trailing slash and HEAD are answered like the plain path and GET."""

import httpx
import pytest
from fastapi import FastAPI

from peagle.api.dialects.plain_requests import PlainRequests


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI(redirect_slashes=False)
    app.add_middleware(PlainRequests)

    @app.get("/v1/models")
    async def models() -> dict[str, str]:
        return {"object": "list"}

    @app.post("/v1/completions")
    async def completions() -> dict[str, str]:
        return {"object": "text_completion"}

    return app


async def ask(app: FastAPI, method: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models/", 200),
        ("POST", "/v1/completions/", 200),
        ("HEAD", "/v1/models", 200),
        ("HEAD", "/v1/models/", 200),
        ("HEAD", "/v1/completions", 405),
        ("GET", "/", 404),
        ("GET", "//", 404),
    ],
)
async def test_a_request_is_answered_as_what_it_stands_for(app: FastAPI, method: str, path: str, status: int) -> None:
    answer = await ask(app, method, path)
    assert answer.status_code == status
    assert bool(answer.content) == (method != "HEAD")


async def test_head_tells_the_length_of_what_get_answers(app: FastAPI) -> None:
    whole, head = await ask(app, "GET", "/v1/models"), await ask(app, "HEAD", "/v1/models")
    assert int(head.headers["content-length"]) == len(whole.content)
