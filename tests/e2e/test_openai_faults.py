"""What a client sees when replicas fail, hang or are full: the real ingress on a real Ray cluster, with replicas that
do what a prompt tells them to.
"""

import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
from ray.llm._internal.serve.core.ingress.ingress import make_fastapi_ingress
from ray.llm._internal.serve.core.protocol import LLMServerProtocol

from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress
from peagle.import_paths import DRAIN_AWARE_ROUTER
from peagle.serve import haproxy
from peagle.serve.launch.ray_cluster import TRANSPORT
from support import waiting
from support.platforms import replicas
from support.platforms.replicas import Answered, take_requests_without_vllm
from support.platforms.served import free_port
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(600)]

TOKEN = 'data: {"id":"1","object":"text_completion","choices":[{"index":0,"text":"a"}]}\n\n'
DONE = "data: [DONE]\n\n"
# Long enough that an answer of a busy machine is not late; each test of silence takes as long.
REQUEST_TIMEOUT_S = 8.0
RETRY_AFTER_S = 7
REPLICA_WAIT_S = 4.0
# A lost replica is replaced after the next check, an unhealthy one only after three.
HEALTH_CHECK_S = 2


class Scripted(LLMServerProtocol):  # type: ignore[misc]  # Ray ships no types
    """A replica whose prompts are commands; `marks` is a folder that all replicas and the test share."""

    def __init__(self, marks: str) -> None:
        take_requests_without_vllm()
        self._marks = Path(marks)
        while (self._marks / "no start").exists():
            time.sleep(0.1)

    async def check_ready(self) -> None:
        await self.check_health()

    async def check_health(self) -> None:
        if (self._marks / "sick").exists():
            raise RuntimeError("secret")

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._obey(request.prompt)

    async def _obey(self, order: str) -> AsyncGenerator[Any, None]:
        if order == "die" or (order == "die once" and self._first("died")):
            os._exit(1)
        if order == "fail":
            raise RuntimeError("secret")
        if order == "refuse a type":
            raise TypeError("top_k must be an integer")
        if order == "refuse":
            error = {"message": "no", "type": "BadRequestError", "param": "prompt", "code": 400}
            yield Answered("ErrorResponse", {"error": error})
            return
        if order == "hang":
            await self._hang()
        yield TOKEN
        if order == "die midway":
            # The last output of a dying process may never be sent.
            await until(self._marks / "read")
            os._exit(1)
        if order == "fail midway":
            raise RuntimeError("secret")
        if order == "hang midway":
            await self._hang()
        if order == "stop midway":
            return
        yield [TOKEN, DONE]

    def _first(self, name: str) -> bool:
        try:
            (self._marks / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    async def _hang(self) -> None:
        (self._marks / "hanging").touch()
        try:
            await asyncio.sleep(3600)
        finally:
            (self._marks / "left").touch()


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module", params=["HAProxy", "Serve's proxy"])
def url(request: pytest.FixtureRequest, marks: Path) -> Iterator[str]:
    """The ingress in front of `pair`, two replicas, and `narrow`, one that holds one request and queues one."""
    import ray
    from ray import cloudpickle, serve

    # Replicas do not have the tests on their path.
    for module in (sys.modules[__name__], replicas, waiting):
        cloudpickle.register_pickle_by_value(module)
    folder = Path(tempfile.mkdtemp(prefix="peagle-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "peagle.api.edge.middlewares")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "30")
        for name, value in TRANSPORT.items():
            patch.setenv(name, value)
        if request.param == "HAProxy":
            for name, value in haproxy.environment(folder, haproxy.BEHIND_HOST).items():
                patch.setenv(name, value)
        # Ray starts a process per CPU in advance; none is needed here.
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        port = free_port()
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        settings = ApiSettings(
            request_timeout_s=REQUEST_TIMEOUT_S, retry_after_s=RETRY_AFTER_S, replica_wait_s=REPLICA_WAIT_S
        )
        ingress = make_fastapi_ingress(PeagleIngress, endpoint_map=ENDPOINTS, app=build_http(settings))
        limits = {
            "pair": {"num_replicas": 2, "max_ongoing_requests": 50},
            "narrow": {"num_replicas": 1, "max_ongoing_requests": 1, "max_queued_requests": 1},
        }
        shared: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}, "health_check_period_s": HEALTH_CHECK_S}
        router = {
            "request_router_class": DRAIN_AWARE_ROUTER,
            "request_router_kwargs": {"replica_wait_s": REPLICA_WAIT_S},
        }
        servers = {
            name: serve.deployment(Scripted, name=name, request_router_config=router, **shared, **options).bind(
                str(marks)
            )
            for name, options in limits.items()
        }
        cards = {n: ModelCard(id=n, object="model", owned_by="x", permission=[], metadata={}) for n in limits}
        serve.run(serve.deployment(ingress, max_ongoing_requests=100, **shared).bind(servers, cards))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()
        shutil.rmtree(folder)


@pytest.fixture
def clean(marks: Path) -> None:
    for mark in marks.iterdir():
        mark.unlink()


@pytest.fixture
async def http(url: str, clean: None) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        yield client


async def order(http: httpx.AsyncClient, prompt: str, model: str = "pair") -> httpx.Response:
    return await http.post("/v1/completions", json={"model": model, "prompt": prompt, "stream": True})


async def until(mark: Path) -> None:
    await asyncio.to_thread(_wait, mark)


async def whole_again(http: httpx.AsyncClient) -> None:
    """Wait until Serve has replaced every replica that an earlier test ended."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while (await http.get("/health")).json().get("replicas") != {"pair": 2, "narrow": 1}:
        assert time.monotonic() < deadline, "a lost replica was not replaced"
        await asyncio.sleep(0.2)


def _wait(mark: Path) -> None:
    eventually(mark.exists)


async def unavailable(http: httpx.AsyncClient, path: str) -> dict[str, Any]:
    """Wait until every model is unavailable; return the error. A replica that answers late counts as full, not sick."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await http.get(path)
        if answer.status_code == 503 and "pair, narrow" in answer.text:
            return error_of(answer, 503)
        assert time.monotonic() < deadline, answer.text


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert "secret" not in answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def last_error(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200
    assert answer.text.startswith(TOKEN)
    assert "secret" not in answer.text
    assert "[DONE]" not in answer.text
    event = answer.text.removeprefix(TOKEN)
    error: dict[str, Any] = json.loads(event.removeprefix("data: "))["error"]
    return error


async def test_an_answer_is_relayed(http: httpx.AsyncClient) -> None:
    answer = await order(http, "go")
    assert (answer.status_code, answer.text) == (200, TOKEN + TOKEN + DONE)
    assert answer.headers["content-type"].startswith("text/event-stream")


async def test_a_refusal_before_the_first_token_has_its_status(http: httpx.AsyncClient) -> None:
    assert error_of(await order(http, "refuse"), 400)["param"] == "prompt"
    assert error_of(await order(http, "refuse a type"), 400)["type"] == "invalid_request_error"


async def test_a_failure_before_the_first_token_is_a_server_error(http: httpx.AsyncClient) -> None:
    assert error_of(await order(http, "fail"), 500)["type"] == "server_error"


async def test_a_failure_midway_is_the_last_event(http: httpx.AsyncClient) -> None:
    assert last_error(await order(http, "fail midway"))["type"] == "server_error"


async def test_a_stream_that_ends_early_is_not_taken_for_whole(http: httpx.AsyncClient) -> None:
    assert "before its answer was complete" in last_error(await order(http, "stop midway"))["message"]


async def test_a_replica_that_hangs_is_given_up_and_told_to_stop(http: httpx.AsyncClient, marks: Path) -> None:
    assert error_of(await order(http, "hang"), 504)["code"] == "timeout"
    await until(marks / "left")


async def test_a_stream_that_stalls_ends_with_an_error(http: httpx.AsyncClient, marks: Path) -> None:
    assert last_error(await order(http, "hang midway"))["code"] == "timeout"
    await until(marks / "left")


@pytest.mark.parametrize("headers", [{}, {"x-request-disconnect-disabled": "?1"}], ids=["plain", "in disguise"])
async def test_a_request_that_its_client_has_left_stops(
    http: httpx.AsyncClient, marks: Path, headers: dict[str, str]
) -> None:
    body = {"model": "pair", "prompt": "hang", "stream": True}
    asking = asyncio.create_task(http.post("/v1/completions", json=body, headers=headers))
    await until(marks / "hanging")
    started = time.monotonic()
    asking.cancel()
    await until(marks / "left")
    assert time.monotonic() - started < REQUEST_TIMEOUT_S


async def test_a_full_model_answers_with_when_to_come_back(http: httpx.AsyncClient, marks: Path) -> None:
    """One request runs; of two more, one waits and the other is refused, whichever arrives first."""
    running = asyncio.create_task(order(http, "hang", "narrow"))
    await until(marks / "hanging")
    more = [asyncio.create_task(order(http, "hang", "narrow")) for _ in range(2)]
    answer = await next(asyncio.as_completed(more))
    assert error_of(answer, 429)["type"] == "rate_limit_error"
    assert answer.headers["retry-after"] == str(RETRY_AFTER_S)
    assert (await http.get("/health")).json() == {"status": "ok", "replicas": {"pair": 2, "narrow": 1}}, "full is well"
    assert (await order(http, "go")).status_code == 200
    assert sorted([(await each).status_code for each in (running, *more)]) == [429, 504, 504]


async def test_health_needs_a_well_replica_of_every_model(http: httpx.AsyncClient, marks: Path) -> None:
    answer = await http.get("/health")
    assert answer.json() == {"status": "ok", "replicas": {"pair": 2, "narrow": 1}}
    (marks / "sick").touch()
    error = await unavailable(http, "/health")
    assert error["code"] == "model_unavailable"
    assert "pair, narrow" in error["message"]


async def test_liveness_is_told_from_readiness(http: httpx.AsyncClient, marks: Path) -> None:
    await whole_again(http)  # Serve may have replaced a replica that was sick
    assert (await http.get("/health/ready")).json()["status"] == "ok"
    (marks / "sick").touch()
    assert (await unavailable(http, "/health/ready"))["code"] == "model_unavailable"
    assert (await http.get("/health/live")).json() == {"status": "ok"}


async def test_with_several_models_one_has_to_be_named(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/completions", json={"prompt": "go"})
    assert error_of(answer, 400)["code"] == "missing_required_parameter"
    assert [model["id"] for model in (await http.get("/v1/models")).json()["data"]] == ["pair", "narrow"]


# The tests below end replicas, so they come last; only the last one needs both.


async def test_a_replica_lost_before_the_first_token_is_not_noticed(http: httpx.AsyncClient, marks: Path) -> None:
    await whole_again(http)
    answer = await order(http, "die once")
    assert (marks / "died").exists()
    assert (answer.status_code, answer.text) == (200, TOKEN + TOKEN + DONE)


async def test_a_replica_lost_midway_is_told(http: httpx.AsyncClient, marks: Path) -> None:
    """The other replica takes it: the replica lost in the previous test need not be back."""
    body = {"model": "pair", "prompt": "die midway", "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        pieces = answer.aiter_text()
        text = await anext(pieces)
        (marks / "read").touch()
        text += "".join([piece async for piece in pieces])
    assert last_error(httpx.Response(answer.status_code, text=text))["type"] == "server_error"


async def test_a_request_waits_a_while_for_the_only_replica_and_is_then_told_when_to_come_back(
    http: httpx.AsyncClient, marks: Path
) -> None:
    await whole_again(http)
    (marks / "no start").touch()
    assert (await order(http, "die once", "narrow")).status_code == 503
    started = time.monotonic()
    answer = await order(http, "go", "narrow")
    assert error_of(answer, 503)["code"] == "model_unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    assert time.monotonic() - started < 3 * REPLICA_WAIT_S
    (marks / "no start").unlink()
    await whole_again(http)
    assert (await order(http, "go", "narrow")).status_code == 200


async def test_a_request_that_ends_every_replica_is_given_up(http: httpx.AsyncClient) -> None:
    await whole_again(http)
    answer = await order(http, "die")
    # By then no replica may be left for a second try, which is answered with 503.
    assert answer.status_code in (502, 503, 504)
    assert error_of(answer, answer.status_code)["type"] == "server_error"
