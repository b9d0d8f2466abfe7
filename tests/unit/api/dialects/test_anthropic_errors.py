"""On the routes of Anthropic's Messages API all errors are Anthropic's, whatever raised them."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.api.dialects.anthropic_errors import AnthropicErrors
from peagle.api.reply import ErrorReply, from_status, overloaded


def answering(reply: ErrorReply) -> ASGIApp:
    return AnthropicErrors(reply.response())


async def ask(app: ASGIApp, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://x") as client:
        return await client.post(path, json={}, headers=headers)


@pytest.mark.parametrize("path", ["/v1/messages", "/prefix/v1/messages/", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (404, "not_found_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (503, "api_error"),
    ],
)
async def test_an_error_is_of_its_kind(path: str, status: int, kind: str) -> None:
    answer = await ask(answering(from_status(status, "max_tokens is required.")), path)
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["type"]) == (status, "error")
    if status < 500:
        assert body["error"] == {"type": kind, "message": "max_tokens is required."}


async def test_a_client_is_still_told_when_to_come_again() -> None:
    answer = await ask(answering(overloaded("Too many.", 3.0)), "/v1/messages")
    assert (answer.headers["retry-after"], answer.json()["error"]["type"]) == ("3", "rate_limit_error")


async def test_other_routes_keep_openais_errors() -> None:
    answer = await ask(answering(from_status(400, "no")), "/v1/responses")
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert "type" not in answer.json()


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        ({"x-api-key": "k"}, "Bearer k"),
        ({"x-api-key": "k", "authorization": "Bearer other"}, "Bearer other"),
        ({}, ""),
    ],
)
async def test_a_key_may_come_as_anthropics_clients_send_it(headers: dict[str, str], seen: str) -> None:
    found = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(Request(scope).headers.get("authorization", ""))
        await from_status(400, "no").response()(scope, receive, send)

    await ask(AnthropicErrors(app), "/v1/messages", **headers)
    await ask(AnthropicErrors(app), "/v1/chat/completions", **{"x-api-key": "k"})
    assert found == [seen, ""]
