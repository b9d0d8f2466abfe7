"""A Kubernetes node is cordoned under load: two real Ray nodes, the real ingress and routers, replicas that stream what
a prompt asks for, and the drain watcher between them and a Kubernetes API over HTTP.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from ray.llm._internal.serve.core.configs.openai_api_models import ModelCard
from ray.llm._internal.serve.core.ingress.ingress import make_fastapi_ingress
from ray.llm._internal.serve.core.protocol import LLMServerProtocol

from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress
from peagle.cluster.drain.drain_actions import DrainPolicy
from peagle.cluster.drain.drainer import Drainer
from peagle.cluster.drain.ray_nodes import Gcs
from peagle.config import parse_deployment
from peagle.serve.app import DRAIN_AWARE, parting_options, routing_options
from support.kubernetes.kubernetes_api import KubernetesApi, client_of, node, ray_pod
from support.platforms import replicas
from support.platforms.replicas import take_requests_without_vllm
from support.platforms.served import free_port
from support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(600)]

DONE = "data: [DONE]\n\n"
REQUEST_TIMEOUT_S = 30.0
# The promised bound; other times in the test allow for a busy machine.
QUIET_AFTER_S = 5.0
LOAD_S, SHORT_S, LONG_S = 10.0, 0.5, 12.0
CLIENTS = 6


class Streaming(LLMServerProtocol):  # type: ignore[misc]  # Ray ships no types
    """A replica that streams for as many seconds as the prompt says, and tells first where it is and when it began.

    It takes a while to load, as a model does: Serve itself goes on routing to an old one until its replacement runs.
    """

    def __init__(self) -> None:
        import ray

        take_requests_without_vllm()
        time.sleep(LOAD_S)
        self._node = ray.get_runtime_context().get_node_id()

    async def check_health(self) -> None: ...

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        return self._stream(float(request.prompt))

    async def _stream(self, seconds: float) -> AsyncGenerator[Any, None]:
        choice = {"index": 0, "text": f"{self._node} {time.time()}"}
        yield f"data: {json.dumps({'id': '1', 'object': 'text_completion', 'choices': [choice]})}\n\n"
        ends_s = time.monotonic() + seconds
        while time.monotonic() < ends_s:
            await asyncio.sleep(0.1)
            yield f"data: {json.dumps({'id': '1', 'object': 'text_completion', 'choices': []})}\n\n"
        yield DONE


@dataclass(frozen=True)
class Answer:
    """One answer: its Ray node, its start there (Unix time), and whether it was complete."""

    ray_node: str
    began_s: float
    is_whole: bool
    text: str


@dataclass(frozen=True)
class Platform:
    """Two Ray nodes, in pods named `head` and `w-a`, with a replica on each."""

    url: str
    gcs: str
    ray_nodes: dict[str, str]


@pytest.fixture(scope="module", params=["soonest", "power-of-two"])
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """A pair of replicas behind either request router."""
    import ray
    from ray import cloudpickle, serve
    from ray.cluster_utils import Cluster

    for module in (sys.modules[__name__], replicas):
        cloudpickle.register_pickle_by_value(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "30")
        cluster = Cluster()
        try:
            for pod in ("head", "w-a"):
                cluster.add_node(
                    num_cpus=1, resources={"room": 2}, env_vars={"RAY_CLOUD_INSTANCE_ID": pod}, include_dashboard=False
                )
            ray.init(address=cluster.address, log_to_driver=False)
            port = free_port()
            # In a cluster each pod has its own address; here two proxies would share one, and clients stay connected.
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            settings = ApiSettings(request_timeout_s=REQUEST_TIMEOUT_S)
            raw = {
                "target": {"source": "none"},
                "speculation": {"enabled": False},
                "routing": {"policy": request.param},
            }
            pair = parse_deployment({"name": "pair", "replicas": {"min": 2, "max": 2}, **raw}, origin="test")
            options = {"health_check_period_s": 60, **parting_options(settings)}
            server = serve.deployment(
                Streaming,
                name="pair",
                num_replicas=2,
                max_ongoing_requests=50,
                ray_actor_options={"num_cpus": 0, "resources": {"room": 1}},
                **options,
                **routing_options(pair, settings),
            )
            ingress = make_fastapi_ingress(PeagleIngress, endpoint_map=ENDPOINTS, app=build_http(settings))
            card = ModelCard(id="pair", object="model", owned_by="x", permission=[], metadata={})
            wired = serve.deployment(ingress, max_ongoing_requests=100, **options, **DRAIN_AWARE)
            serve.run(wired.bind({"pair": server.bind()}, {"pair": card}))
            gcs = cluster.address
            yield Platform(f"http://127.0.0.1:{port}", gcs, {each.pod: each.id for each in Gcs(gcs).nodes()})
        finally:
            if ray.is_initialized():
                serve.shutdown()
                ray.shutdown()
            cluster.shutdown()


@pytest.fixture
async def server() -> AsyncGenerator[KubernetesApi, None]:
    async with KubernetesApi() as serving:
        for name in ("kept", "left"):
            await serving.put("nodes", node(name))
        await serving.put("pods", ray_pod("head", on="kept", kind="head", ip="127.0.0.1"))
        await serving.put("pods", ray_pod("w-a", on="left", ip="127.0.0.1"))
        yield serving


async def ask(http: httpx.AsyncClient, seconds: float) -> Answer:
    answer = await http.post("/v1/completions", json={"model": "pair", "prompt": str(seconds), "stream": True})
    first = answer.text.partition("\n\n")[0].removeprefix("data: ")
    try:
        ray_node, began = json.loads(first)["choices"][0]["text"].split()
    except (ValueError, LookupError):
        return Answer("nowhere", time.time(), False, answer.text)
    return Answer(ray_node, float(began), answer.status_code == 200 and answer.text.endswith(DONE), answer.text[-300:])


async def keep_asking(http: httpx.AsyncClient, answers: list[Answer], enough: asyncio.Event) -> None:
    while not enough.is_set():
        answers.append(await ask(http, SHORT_S))


async def test_a_node_cordoned_under_load_gets_nothing_new_loses_nothing_and_is_released(
    platform: Platform, server: KubernetesApi
) -> None:
    left = platform.ray_nodes["w-a"]
    answers: list[Answer] = []
    enough = asyncio.Event()
    policy = DrainPolicy(patience_s=60.0, finish_s=REQUEST_TIMEOUT_S)
    async with (
        httpx.AsyncClient(base_url=platform.url, timeout=120) as http,
        client_of(server) as api,
        asyncio.TaskGroup() as tasks,
    ):
        watcher = asyncio.create_task(Drainer(api, "r", policy, lambda _: Gcs(platform.gcs)).run())
        clients = [tasks.create_task(keep_asking(http, answers, enough)) for _ in range(CLIENTS)]
        await until(lambda: len(answers) >= 20 and len({each.ray_node for each in answers}) == 2)
        long = [tasks.create_task(ask(http, LONG_S)) for _ in range(CLIENTS)]
        await asyncio.sleep(1.0)
        cordoned_s = time.time()
        await server.merge("nodes", "left", {"spec": {"unschedulable": True}})
        await until(lambda: "w-a" not in server.names("pods"))
        released_s = time.time()
        enough.set()
        await asyncio.gather(*clients)
        answers += await asyncio.gather(*long)
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher

    assert [each.text for each in answers if not each.is_whole] == []
    there = [each for each in answers if each.ray_node == left]
    late_s = [each.began_s - cordoned_s for each in there if each.began_s > cordoned_s + QUIET_AFTER_S]
    assert late_s == []
    assert [each for each in there if each.began_s < cordoned_s], "nothing ran there before"
    kept = [each for each in answers if each.ray_node == platform.ray_nodes["head"]]
    assert [each for each in kept if cordoned_s + QUIET_AFTER_S < each.began_s < released_s], "nothing was asked since"
    assert released_s < cordoned_s + policy.patience_s + policy.finish_s, "it was taken away at its deadline, not empty"
    assert [each.pod for each in Gcs(platform.gcs).nodes()] == ["head"]
