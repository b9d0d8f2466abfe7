"""Two ingress processes and one Router on real Ray Serve: clients' limits hold, and a scrape speaks for all of them. No
engine is needed for that: the replica answers with what it was told, and with the usage of the request.
"""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml
from openai import OpenAI
from ray.llm._internal.serve.core.configs.openai_api_models import CompletionResponse, ModelCard
from ray.llm._internal.serve.core.ingress.ingress import make_fastapi_ingress
from ray.llm._internal.serve.core.protocol import LLMServerProtocol

from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress
from support.platforms.local_ray import local_ray
from support.platforms.served import free_port
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(600)]

MODEL, INGRESSES, GO = "m", 2, "go"
ASKED = 20
_COUNTED = re.compile(r'^peagle_http_requests_total\{ingress="([^"]+)",[^}]*route="/version"[^}]*\} (\S+)$', re.M)
PER_MINUTE, TOKENS_PER_MINUTE, AT_ONCE, SECONDS, GIVEN_BACK_S = 120, 1000, 6, 12.0, 10.0
OF_TOKENS = {"tokens_per_minute": TOKENS_PER_MINUTE, "requests_per_minute": 6}
KEYS = [
    {"name": "free", "key": "sk-free", "weight": 2, "class": "batch"},
    {"name": "by-minute", "key": "sk-by-minute", "limits": {"requests_per_minute": PER_MINUTE}},
    {"name": "at-once", "key": "sk-at-once", "limits": {"requests_at_once": AT_ONCE}},
    {"name": "tokens", "key": "sk-tokens", "limits": OF_TOKENS},
]
PROMPT_TOKENS, OUTPUT_TOKENS = 12, 9
USAGE = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 21}


def begin_and_wait(file: Path) -> None:
    file.with_suffix(".begun").touch()
    while not file.exists():
        time.sleep(0.05)


class Telling(LLMServerProtocol):  # type: ignore[misc]  # Ray ships no types
    """A replica that answers with the client it was told; a numeric prompt sets the answer's time in seconds."""

    async def check_health(self) -> None:
        pass

    async def count_steps(self, counting: bool) -> None:
        pass

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._answer(request, raw_request_info.headers)

    async def _answer(self, request: Any, headers: dict[str, str]) -> AsyncGenerator[Any, None]:
        import asyncio

        if request.prompt != GO:
            await asyncio.to_thread(begin_and_wait, Path(request.prompt))
        text = headers.get("x-peagle-client", "nobody")
        choice = {"index": 0, "text": text, "finish_reason": "stop", "logprobs": None}
        if not request.stream:
            yield CompletionResponse(model=MODEL, choices=[choice], usage=USAGE)
            return
        options, usage = request.stream_options, f',"usage":{json.dumps(USAGE)}'
        token = f'data: {{"object":"text_completion","model":"{MODEL}","choices":[{json.dumps(choice)}]'
        yield f"{token}{usage if options and options.continuous_usage_stats else ''}}}\n\n"
        if options and options.include_usage:
            yield f'data: {{"object":"text_completion","model":"{MODEL}","choices":[]{usage}}}\n\n'
        yield "data: [DONE]\n\n"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from ray import cloudpickle, serve

    from peagle.serve.routing.router_deployment import bind_router

    # Replicas do not have this file's folder on their path.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text(yaml.safe_dump({"keys": KEYS}), encoding="utf-8")
    port = free_port()
    with local_ray():
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        app = build_http(ApiSettings(keys_file=str(keys)))
        ingress = make_fastapi_ingress(PeagleIngress, endpoint_map=ENDPOINTS, app=app)
        light = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 1000}
        server = serve.deployment(Telling, name=MODEL, **light).bind()
        card = ModelCard(id=MODEL, object="model", owned_by="x", permission=[], metadata={})
        deployment = serve.deployment(ingress, name="Ingress", num_replicas=INGRESSES, **light)
        serve.run(deployment.bind({MODEL: server}, {MODEL: card}, router=bind_router({})), name="clients")
        yield f"http://127.0.0.1:{port}"


def client(url: str, name: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=f"sk-{name}", max_retries=0, timeout=PATIENCE_S)


def asked(url: str, name: str, **fields: Any) -> httpx.Response:
    body = {"prompt": GO, "max_tokens": 9, **fields}
    headers = {"Authorization": f"Bearer sk-{name}", "x-peagle-client": '{"client":"somebody"}'}
    # Unverified, because there is no TLS, and reading certificates for each call would take longer than the call.
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=PATIENCE_S, verify=False)


@pytest.mark.parametrize("stream", [False, True])
def test_a_replica_learns_whose_a_request_is_and_a_client_cannot_say_otherwise(url: str, stream: bool) -> None:
    assert json.loads(client(url, "free").completions.create(model=MODEL, prompt=GO).choices[0].text) == {
        "client": "free",
        "weight": 2.0,
        "class": "batch",
    }
    told = asked(url, "by-minute", stream=stream).text
    assert "by-minute" in told
    assert "somebody" not in told
    assert "interactive" in told
    assert ("usage" in told) == (not stream)  # of a stream only where it is asked for
    flex = client(url, "by-minute").completions.create(model=MODEL, prompt=GO, extra_body={"service_tier": "flex"})
    assert json.loads(flex.choices[0].text)["class"] == "batch"


def given_back(client: OpenAI, prompt: str) -> Any:
    """The answer to a request for 900 tokens, which fits once those that requests before it did not use are free again.

    What comes with time alone would take more than twice as long.
    """
    deadline = time.monotonic() + GIVEN_BACK_S
    while True:
        try:
            return client.completions.create(model=MODEL, prompt=prompt, max_tokens=900)
        except openai.RateLimitError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def test_a_client_beyond_its_tokens_is_told_so_as_openai_does(url: str, tmp_path: Path) -> None:
    with client(url, "tokens") as openai_client:
        began_s = time.monotonic()
        good = openai_client.completions.with_raw_response.create(model=MODEL, prompt=GO, max_tokens=500)
        came_back = (time.monotonic() - began_s) * TOKENS_PER_MINUTE / 60
        assert good.headers["x-ratelimit-limit-tokens"] == str(TOKENS_PER_MINUTE)
        assert int(good.headers["x-ratelimit-remaining-tokens"]) <= TOKENS_PER_MINUTE - 500 + came_back
        assert good.headers["x-ratelimit-reset-tokens"].endswith("s")
        assert good.headers["x-ratelimit-remaining-requests"] == "5"  # it is 6 again after 10 s
        assert given_back(openai_client, GO)
        with pytest.raises(openai.RateLimitError) as large:
            openai_client.completions.create(model=MODEL, prompt=GO, max_tokens=1001)
        assert large.value.response.headers["x-should-retry"] == "false"
        gate = tmp_path / "open"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(given_back, openai_client, str(gate))
            try:
                eventually((tmp_path / "open.begun").exists)
                with pytest.raises(openai.RateLimitError) as refused:
                    openai_client.completions.create(model=MODEL, prompt=GO, max_tokens=900)
            finally:
                gate.touch()
            assert running.result()
    headers, error = refused.value.response.headers, refused.value
    assert (error.code, error.type) == ("rate_limit_exceeded", "rate_limit_error")
    assert "tokens_per_minute of the API key tokens is 1000" in error.message
    assert 1 <= int(headers["retry-after"]) <= 60


def usage(url: str, name: str) -> dict[str, Any]:
    """Return the client's row of `/fleet/usage`."""
    answer = httpx.get(f"{url}/fleet/usage", timeout=PATIENCE_S).raise_for_status()
    rows: list[dict[str, Any]] = answer.json()["clients"]
    return next((row for row in rows if row["client"] == name), {"models": [{"requests": 0}]})


def test_a_limit_by_the_minute_holds_over_all_ingress_processes(url: str) -> None:
    began_s = time.monotonic()

    def ask_on(_: int) -> Counter[int]:
        statuses: Counter[int] = Counter()
        # On a slow machine the first minute's requests alone take longer.
        while time.monotonic() - began_s < SECONDS or not statuses[429]:
            statuses[asked(url, "by-minute").status_code] += 1
        return statuses

    with ThreadPoolExecutor(16) as pool:
        statuses = sum(pool.map(ask_on, range(16)), Counter())
    seconds = time.monotonic() - began_s
    assert set(statuses) == {200, 429}
    # An earlier test has sent a few.
    assert statuses[200] == pytest.approx(PER_MINUTE * (1 + seconds / 60), rel=0.05)
    values = httpx.get(f"{url}/metrics", timeout=PATIENCE_S).raise_for_status().text.splitlines()
    counted = [
        line for line in values if line.startswith("peagle_client_requests_total") and 'client="by-minute"' in line
    ]
    assert len(counted) == INGRESSES, counted


def test_no_more_requests_are_open_at_once_than_the_limit_over_all_ingress_processes(url: str, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    with ThreadPoolExecutor(40) as pool:
        asking = [pool.submit(asked, url, "at-once", prompt=str(gate)) for _ in range(40)]
        try:
            eventually(lambda: sum(each.done() for each in asking) >= 40 - AT_ONCE)
        finally:
            gate.touch()
        statuses = Counter(each.result().status_code for each in asking)
    assert statuses == {200: AT_ONCE, 429: 40 - AT_ONCE}
    assert usage(url, "at-once")["refusals"]["requests_at_once"] == 40 - AT_ONCE
    # An ingress process tells the Router of ends at once, and answers without waiting for it.
    eventually(lambda: asked(url, "at-once").status_code == 200)
    for _ in range(20):  # one after the other, and each is free for the next at once
        assert asked(url, "at-once").status_code == 200


def test_what_clients_used_is_told_on_this_machine(url: str) -> None:
    before = usage(url, "free")["models"][0]
    for stream in (False, True, True):
        assert asked(url, "free", stream=stream).status_code == 200
    after = usage(url, "free")["models"][0]
    assert after["model"] == MODEL
    assert after["requests"] - before["requests"] == 3
    assert after["output_tokens"] - before.get("output_tokens", 0) == 3 * OUTPUT_TOKENS
    assert after["prompt_tokens"] - before.get("prompt_tokens", 0) == 3 * PROMPT_TOKENS


def count(url: str, *, counting: bool) -> Any:
    return httpx.put(f"{url}/fleet/metrics", json={"counting": counting}, timeout=PATIENCE_S).raise_for_status().json()


def counted(url: str) -> Counter[str]:
    """Count requests for the version by the ingress process that answered."""
    found = _COUNTED.findall(httpx.get(f"{url}/metrics", timeout=PATIENCE_S).raise_for_status().text)
    return Counter({ingress: int(float(count)) for ingress, count in found})


def test_a_scrape_hears_every_ingress_process(url: str) -> None:
    def ask_version() -> None:
        headers = {"Authorization": "Bearer sk-free"}
        httpx.get(f"{url}/version", headers=headers, timeout=PATIENCE_S).raise_for_status()

    deadline = time.monotonic() + PATIENCE_S
    before = counted(url)
    for _ in range(ASKED):
        ask_version()
    while not (len(after := counted(url)) == INGRESSES and (after - before).total() == ASKED):
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.5)
    assert all(counted(url) == after for _ in range(8))

    paused = count(url, counting=False)
    assert paused == {"counting": False, "ingresses": INGRESSES, "replicas": {MODEL: 1}}
    for _ in range(ASKED):
        ask_version()
    assert counted(url) == after
    count(url, counting=True)
    ask_version()
    assert (counted(url) - after).total() == 1
