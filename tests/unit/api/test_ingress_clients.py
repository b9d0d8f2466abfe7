"""Requests with API keys through the real application: replicas learn the client, answers show its limits."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import ActorDiedError
from ray.llm._internal.serve.core.configs.openai_api_models import CompletionResponse

from peagle.api.api_settings import ApiSettings
from peagle.api.clients.client_limits import PERIOD_S
from peagle.api.clients.request_charge import Charge
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress
from peagle.api.tries import LAST_TRY_HEADER
from peagle.config.deployment import Replicas, Routing
from peagle.router.fairness.limit_book import LimitAnswer, LimitBook, LimitReport
from peagle.router.fairness.step_sharing import Flow
from support.virtual_time import in_virtual_time

KEYS = """keys:
- {name: few, key: sk-few, limits: {requests_per_minute: 2, tokens_per_minute: 1000}}
- {name: many, key: sk-many, weight: 3}
- {name: wide, key: sk-wide, limits: {tokens_per_minute: 1000}}
"""
USAGE = {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21}
CHOICE = {"index": 0, "text": "a", "finish_reason": "stop", "logprobs": None}


class Answers:
    """Serve's response to one call: one answer, or an exception."""

    def __init__(self, error: Exception | None, answers: asyncio.Event) -> None:
        self._answers = answers
        self._left: list[Any] = [error or CompletionResponse(model="m", choices=[CHOICE], usage=USAGE)]

    async def __anext__(self) -> Any:
        await self._answers.wait()
        if not self._left:
            raise StopAsyncIteration
        reply = self._left.pop()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def cancel(self) -> None:
        pass


class Platform:
    """The routes of an ingress, with handles of a model and a Router that record their calls."""

    def __init__(self, keys: Path | None, retries: int = 0) -> None:
        self.headers: list[dict[str, str]] = []
        self.charges: list[Charge | None] = []
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self._book, self.reports = LimitBook(), list[LimitReport]()
        self.app = build_http(ApiSettings(keys_file=None if keys is None else str(keys), replica_retries=retries))
        handle = SimpleNamespace(completions=SimpleNamespace(remote=self._complete))
        handle.options = lambda **options: handle
        router = SimpleNamespace(limit_clients=SimpleNamespace(remote=self._limit))
        card = SimpleNamespace(metadata={})
        routing = Routing(max_ongoing_requests=4, max_queued_requests=4)
        deployment: Any = SimpleNamespace(routing=routing, replicas=Replicas(), pools=False)
        ingress = PeagleIngress({"m": handle}, {"m": card}, router=router, deployments={"m": deployment})
        ingress.app = self.app
        for name in ("completions", "models"):
            ENDPOINTS[name](self.app)(getattr(ingress, name))

    async def _limit(self, report: LimitReport) -> LimitAnswer:
        self.reports.append(report)
        return self._book.exchange(report, 0.0)

    def _complete(self, body: Any, info: Any) -> Answers:
        self.headers.append(info.headers)
        self.charges.append(info.tries.charge)
        return Answers(self.error, self.answers)

    async def ask(self, key: str | None, **fields: Any) -> httpx.Response:
        headers = {"x-peagle-client": "forged"} | ({"authorization": f"Bearer {key}"} if key else {})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://test") as http:
            return await http.post("/v1/completions", json={"prompt": "x" * 40, **fields}, headers=headers)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return Platform(path)


async def test_a_replica_is_told_whose_a_request_is(platform: Platform) -> None:
    assert (await platform.ask("sk-many")).status_code == 200
    assert (await platform.ask("sk-many", service_tier="flex")).status_code == 200
    assert [headers["x-peagle-client"] for headers in platform.headers] == [
        '{"client":"many","weight":3.0,"class":"interactive"}',
        '{"client":"many","weight":3.0,"class":"batch"}',
    ]
    assert platform.reports == []


async def test_a_replica_is_told_of_a_request_that_is_not_tried_again() -> None:
    platform = Platform(None, retries=2)
    platform.error = ActorDiedError()
    assert (await platform.ask(None)).status_code == 502
    assert [LAST_TRY_HEADER in headers for headers in platform.headers] == [False, False, True]


async def test_the_request_router_knows_whose_turn_a_request_takes_and_all_that_its_answers_may_need(
    platform: Platform,
) -> None:
    await platform.ask("sk-many", max_tokens=50, n=4)
    await platform.ask("sk-many", max_tokens=50, service_tier="flex")
    flows = [(charge.flow, charge.tokens) for charge in platform.charges if charge is not None]
    assert flows == [(Flow("many", 3.0), 10 + 4 * 50), (Flow("many", 3.0, is_batch=True), 10 + 50)]


async def test_without_keys_nothing_is_told_and_nobody_asked() -> None:
    platform = Platform(None, retries=1)
    answer = await platform.ask(None)
    assert (answer.status_code, platform.headers, platform.reports) == (200, [{}], [])
    assert not any(name.startswith("x-ratelimit") for name in answer.headers)


@in_virtual_time
async def test_a_request_beyond_a_limit_reaches_no_replica_and_says_when_to_come_again(platform: Platform) -> None:
    answers = [await platform.ask("sk-few", max_tokens=100) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert answers[0].headers["x-ratelimit-remaining-tokens"] == "890"
    error, headers = answers[2].json()["error"], answers[2].headers
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert "requests_per_minute of the API key few is 2" in error["message"]
    assert headers["retry-after"] == "30"
    assert len(platform.headers) == 2
    async with httpx.AsyncClient(transport=httpx.ASGITransport(platform.app), base_url="http://test") as http:
        listed = await http.get("/v1/models", headers={"x-api-key": "sk-few"})
    assert listed.headers["x-ratelimit-limit-tokens"] == "1000"


async def test_a_request_that_failed_gives_its_tokens_back(platform: Platform) -> None:
    platform.error = ValueError("no")
    assert (await platform.ask("sk-few", max_tokens=900)).status_code == 500
    platform.error = None
    assert (await platform.ask("sk-few", max_tokens=900)).status_code == 200
    assert platform.reports[1].returned == {"few": 910}


async def test_what_was_used_is_counted_by_client(platform: Platform) -> None:
    for _ in range(3):
        await platform.ask("sk-few")
    counted = {
        (name, dict(labels).get("kind") or dict(labels).get("limit")): value
        for name, labels, value in platform.app.state.ledger.metrics.values()
        if dict(labels).get("client") == "few"
    }
    assert counted["peagle_client_requests_total", None] == 2
    assert counted["peagle_client_tokens_total", "output"] == 18
    assert counted["peagle_client_refusals_total", "requests_per_minute"] == 1


@in_virtual_time
async def test_who_floods_a_model_leaves_places_to_others(platform: Platform) -> None:
    platform.answers.clear()
    flood = [asyncio.create_task(platform.ask("sk-many")) for _ in range(8)]
    _, waiting = await asyncio.wait(flood, timeout=0.5)
    assert len(waiting) == 4
    other = asyncio.create_task(platform.ask("sk-few"))
    await asyncio.wait({other}, timeout=0.1)
    platform.answers.set()
    refused = [answer for answer in await asyncio.gather(*flood) if answer.status_code == 429]
    assert (await other).status_code == 200
    assert len(refused) == 4
    assert {answer.json()["error"]["code"] for answer in refused} == {"overloaded"}
    assert all(answer.headers["retry-after"] for answer in refused)
    assert (await platform.ask("sk-many")).status_code == 200


async def test_a_request_that_gets_no_place_gives_its_tokens_back(platform: Platform) -> None:
    platform.answers.clear()
    flood = [asyncio.create_task(platform.ask("sk-wide", max_tokens=90)) for _ in range(5)]
    (refused,), _ = await asyncio.wait(flood, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().json()["error"]["code"] == "overloaded"
    platform.answers.set()
    await asyncio.gather(*flood)
    await asyncio.sleep(2 * PERIOD_S)
    assert sum(report.returned.get("wide", 0) for report in platform.reports) == 100 + 4 * (100 - 21)
