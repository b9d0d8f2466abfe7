"""SageMaker's requirements for a container, with its request formats, on the real platform."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.platforms.served import Served
from support.waiting import PATIENCE_S, soon

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

# Headers that SageMaker's runtime adds to the client's.
HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "X-Amzn-SageMaker-Custom-Attributes": "c000b4f9-df62-4c85-a0bf-7c525f9104a4,tokens=4",
}
CHAT = {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 4, "temperature": 0}
COMPLETION = {"prompt": "import os\n", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.url, headers=HEADERS, timeout=PATIENCE_S) as client:
        yield client


def told(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    return http.post(path, json=body).raise_for_status().json()["choices"]


async def test_a_ping_is_answered_in_time_and_without_a_body(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, headers=HEADERS, timeout=PATIENCE_S) as http:
        answer = await soon(lambda: http.get("/ping"), within_s=2.0)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("body", "path"), [(CHAT, "/v1/chat/completions"), (COMPLETION, "/v1/completions")], ids=["chat", "completion"]
)
def test_an_invocation_is_answered_as_the_route_that_it_is_for(
    http: httpx.Client, body: dict[str, Any], path: str
) -> None:
    assert told(http, "/invocations", body) == told(http, path, body)


@pytest.mark.parametrize("body", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_an_invocation_streams_where_it_says_so(http: httpx.Client, body: dict[str, Any]) -> None:
    with http.stream("POST", "/invocations", json={**body, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["choices"] for event in events[:-1])


@pytest.mark.parametrize("body", [{"inputs": "import os", "parameters": {}}, {}])
def test_an_invocation_of_another_shape_is_told_what_to_send(http: httpx.Client, body: dict[str, Any]) -> None:
    answer = http.post("/invocations", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Send messages for a chat, prompt for a completion, input for")


def test_a_mistake_in_an_invocation_is_a_400(http: httpx.Client) -> None:
    answer = http.post("/invocations", json={**COMPLETION, "max_tokens": -1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "max_tokens")
