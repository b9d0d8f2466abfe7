"""Clients with API keys on one real engine: a light client is served while another floods it."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(1500)]

# Running requests of the flood, and how many of them fit into a shared step: 96 tokens, 8 per request at K = 7.
AT_ONCE, IN_A_STEP = 28, 12
# Some of the latter may end meanwhile, and others take their place.
FOLLOWED = 4
SHORT_TOKENS = 48
TWO_TOKENS: dict[str, Any] = {"prompt": "x", "max_tokens": 2, "extra_body": {"ignore_eos": True}}
# Traces are tested elsewhere.
UNTRACED = {"traceparent": f"00-{'1' * 32}-{'1' * 16}-00"}


class Streams:
    """Streaming requests, and the number of tokens received for each."""

    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self._http, self._model = http, model
        self.tokens: Counter[str] = Counter()

    async def ask(self, name: str, key: str, tokens: int, **fields: Any) -> None:
        body = {
            "model": self._model,
            "prompt": f"# {name}\ndef f(x):",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            **fields,
        }
        headers = {"authorization": f"Bearer {key}", **UNTRACED}
        async with self._http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    self.tokens[name] = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]

    def of(self, begin: str) -> int:
        """Tokens of all requests with this name prefix."""
        return sum(count for name, count in self.tokens.items() if name.startswith(begin))

    @asynccontextmanager
    async def flood(self, name: str, key: str, count: int, **fields: Any) -> AsyncIterator[None]:
        """Keep this many requests open until the block ends."""

        async def one(number: int) -> None:
            for turn in range(1000):
                await self.ask(f"{name}-{number}-{turn}", key, 400, **fields)

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        try:
            yield
            assert not any(task.done() for task in tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def reaches(self, name: str, tokens: int) -> None:
        async with asyncio.timeout(300):
            while self.of(name) < tokens:  # noqa: ASYNC110 -- the streams tell nobody
                await asyncio.sleep(0.05)


@pytest.fixture
async def streams(keyed: Served) -> AsyncIterator[Streams]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=keyed.url, timeout=300, limits=limits, trust_env=False) as http:
        yield Streams(http, keyed.model)


async def resting_meanwhile(streams: Streams, flooding: str, **fields: Any) -> int:
    """Count the flood's requests that get less than half of the tokens of another client's short request."""
    async with streams.flood("flood", flooding, AT_ONCE, **fields):
        async with asyncio.timeout(300):
            while len(streams.tokens) < AT_ONCE:  # noqa: ASYNC110 -- the streams tell nobody
                await asyncio.sleep(0.05)
        before = dict(streams.tokens)
        await streams.ask("short", "sk-few", SHORT_TOKENS)
        return sum(streams.tokens[name] - before[name] < SHORT_TOKENS / 2 for name in before)


async def test_one_client_s_many_requests_rest_while_another_s_is_answered(streams: Streams) -> None:
    assert await resting_meanwhile(streams, "sk-many") > AT_ONCE - IN_A_STEP - FOLLOWED


async def test_requests_of_one_client_do_not_make_each_other_rest(streams: Streams) -> None:
    assert await resting_meanwhile(streams, "sk-few") < FOLLOWED


async def test_the_batch_class_yields(streams: Streams) -> None:
    assert await resting_meanwhile(streams, "sk-few", service_tier="flex") > AT_ONCE - IN_A_STEP - FOLLOWED


async def test_tokens_are_as_the_weights(streams: Streams) -> None:
    async with streams.flood("heavy", "sk-heavy", 16), streams.flood("light", "sk-many", 16):
        await streams.reaches("light", 400)
        heavy, light = streams.of("heavy"), streams.of("light")
        await streams.reaches("light", light + 1500)
        ratio = (streams.of("heavy") - heavy) / (streams.of("light") - light)
    assert ratio == pytest.approx(3.0, rel=0.1)


def test_a_limit_is_an_error_that_openai_s_client_knows(keyed: Served) -> None:
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-bounded", max_retries=0, default_headers=UNTRACED)
    for _ in range(2):
        client.completions.create(model=keyed.model, **TWO_TOKENS)
    with pytest.raises(openai.RateLimitError, match="requests_per_minute of the API key bounded is 2") as refused:
        client.completions.create(model=keyed.model, **TWO_TOKENS)
    assert int(refused.value.response.headers["retry-after"]) > 0
    assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-none", max_retries=0).models.list()


def test_what_a_client_used_is_told(keyed: Served) -> None:
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="sk-bounded", max_retries=0, default_headers=UNTRACED)

    def used() -> dict[str, Any]:
        rows = httpx.get(f"{keyed.url}/fleet/usage", timeout=30, trust_env=False).raise_for_status().json()["clients"]
        row: dict[str, Any] = next(row for row in rows if row["client"] == "bounded")
        return row

    row = used()
    (model,) = row["models"]
    assert model["requests"] == 2
    assert model["output_tokens"] == 4
    assert row["refusals"] == {"requests_per_minute": 1}
    text = httpx.get(f"{keyed.url}/metrics", timeout=60, trust_env=False).raise_for_status().text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    told = [each for each in samples if each.labels.get("client") == "bounded" and each.labels.get("kind") == "output"]
    assert [(each.name, each.value) for each in told] == [("peagle_client_tokens_total", 4.0)]
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model=keyed.model, **TWO_TOKENS)
    assert used()["refusals"] == {"requests_per_minute": 2}
