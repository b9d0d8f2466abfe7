"""The real request router and Router deployment on real Ray Serve, over replicas that simulate step times."""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import cloudpickle, serve
from ray.serve.config import RequestRouterConfig

from peagle.api.clients.request_charge import Charge
from peagle.api.tries import Tries
from peagle.bench.dispatch.dispatchers import APP, FleetPlan, run, start
from peagle.bench.dispatch.fleet_load import Sample, burst, mixed_arrivals
from peagle.config import parse_deployment
from peagle.import_paths import DRAIN_AWARE_ROUTER, REQUEST_ROUTER
from peagle.router.dispatch import DispatcherReport
from peagle.router.fairness.client_terms import Client
from peagle.serve.routing import router_deployment
from peagle.serve.routing.router_deployment import bind_router
from support.platforms.local_ray import local_ray
from support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(600)]

REPLICAS, CALLERS = 4, 4
SOONEST = "soonest"
PLACED, PLACES, FLOOD = "placed", 8, 2000


@pytest.fixture(scope="module")
def callers() -> Iterator[list[Any]]:
    """Four processes that dispatch to four equal replicas."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with local_ray():
        yield start(FleetPlan([1.0] * REPLICAS, CALLERS, policies=(SOONEST,)))


def decisions(callers: list[Any]) -> Counter[str]:
    """Decisions by reason, of all processes that dispatch."""
    return sum(ray.get([caller.__ray_call__.remote(decided_here) for caller in callers]), Counter())


def decided_here(caller: Any) -> Counter[str]:
    counted = (each for each in caller.ledger.metrics.values() if each[0] == "peagle_dispatch_decisions_total")
    return Counter({dict(labels)["reason"]: int(value) for _, labels, value in counted})


def by_reports(callers: list[Any], arrivals: Any) -> int:
    """How many of these requests were placed by what replicas had reported."""
    before = decisions(callers)
    run(callers, SOONEST, arrivals)
    made = decisions(callers) - before
    return made["soonest"] + made["home"]


def reporting() -> int:
    """How many replicas the Router has heard from."""
    handle = serve.get_deployment_handle(router_deployment.NAME, APP)
    return len(handle.news.remote(SOONEST, DispatcherReport("test")).result().snapshots)


def shares(samples: list[Sample]) -> Counter[str]:
    return Counter(sample.replica for sample in samples)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_processes_that_dispatch_at_one_moment_do_not_herd(callers: list[Any], seed: int) -> None:
    samples = run(callers, SOONEST, burst(200, seed))
    assert len(samples) == 200
    assert max(shares(samples).values()) <= 1.5 * 200 / REPLICAS, shares(samples)


def test_every_decision_is_counted_and_rests_on_reports(callers: list[Any]) -> None:
    def most_by_reports() -> bool:
        before = decisions(callers)
        run(callers, SOONEST, mixed_arrivals(100, per_s=20.0, seed=5))
        made = decisions(callers) - before
        assert made.total() == 100
        print(made)
        return made["soonest"] + made["home"] > 80

    eventually(most_by_reports)  # reports are stale for a moment after the machine has stalled


def test_without_a_router_every_request_is_answered_and_reports_come_back(callers: list[Any]) -> None:
    found: list[Sample] = []
    load = threading.Thread(target=lambda: found.extend(run(callers, SOONEST, mixed_arrivals(200, per_s=10.0, seed=6))))
    load.start()
    time.sleep(3.0)
    handle = next(each for each in ray.util.list_named_actors(all_namespaces=True) if "#Router#" in each["name"])
    ray.kill(ray.get_actor(handle["name"], handle["namespace"]), no_restart=True)
    load.join()
    assert len(found) == 200
    assert max(shares(found).values()) <= 1.5 * 200 / REPLICAS, shares(found)
    eventually(lambda: reporting() == REPLICAS)
    eventually(lambda: by_reports(callers, mixed_arrivals(8, per_s=20.0, seed=8)) == 8)
    eventually(lambda: by_reports(callers, mixed_arrivals(40, per_s=20.0, seed=7)) > 30)


def wait_for(file: str) -> None:
    while not Path(file).exists():
        time.sleep(0.02)


class Placed:
    """A replica that answers with the start order of a request, once a file exists."""

    def __init__(self) -> None:
        self._began = 0

    async def completions(self, file: str, info: Any = None) -> AsyncGenerator[int]:
        self._began += 1
        began = self._began
        Path(f"{file}.{began}").touch()  # noqa: ASYNC240 -- not in a thread: there may be fewer than places
        await asyncio.to_thread(wait_for, file)
        yield began


class Front:
    def __init__(self, *_: Any) -> None:
        pass


class Carried:
    """Passes a request's tries to the request router in this process, and nothing to the replica."""

    def __init__(self, tries: Tries | None = None) -> None:
        self._tries, self.waits = tries, False

    @property
    def tries(self) -> Tries | None:
        self.waits = True  # the request router reads it as the request begins to wait for a place
        return self._tries

    def __reduce__(self) -> Any:
        return Carried, ()


def ask_as(handle: Any, client: str, file: Path) -> tuple[Any, Carried]:
    tries = Tries(PLACED)
    tries.charge = Charge(Client(client), PLACED, 0, 100)
    carried = Carried(tries)
    return handle.completions.remote(str(file), carried), carried


@pytest.mark.parametrize("path", [REQUEST_ROUTER, DRAIN_AWARE_ROUTER])
def test_one_request_gets_the_next_place_however_many_of_another_key_wait(
    callers: list[Any], path: str, tmp_path: Path
) -> None:
    routing = RequestRouterConfig(request_router_class=path, request_router_kwargs={"model": PLACED, "policy": SOONEST})
    light = {"ray_actor_options": {"num_cpus": 0}, "logging_config": {"enable_access_log": False}}
    placed = serve.deployment(
        Placed, name=PLACED, max_ongoing_requests=PLACES, request_router_config=routing, **light
    ).bind()
    deployment = parse_deployment(
        {"name": PLACED, "target": {"source": "m"}, "speculation": {"enabled": False}}, PLACED
    )
    front = serve.deployment(Front, name="front", **light).bind(placed, bind_router({PLACED: deployment}))
    app = path.rpartition(".")[2]
    serve.run(front, name=app, route_prefix=None)
    handle, gate = serve.get_deployment_handle(PLACED, app).options(stream=True), tmp_path / "open"
    flood = [ask_as(handle, "many", gate) for _ in range(FLOOD)]
    eventually(lambda: all(carried.waits for _, carried in flood) and len([*tmp_path.iterdir()]) == PLACES, 300.0)
    few, carried = ask_as(handle, "few", gate)
    eventually(lambda: carried.waits)
    gate.touch()
    began = next(iter(few))
    assert sorted([began, *(next(iter(answer)) for answer, _ in flood)]) == [*range(1, FLOOD + 2)]
    serve.delete(app)
    # Requests that are sent at the same time may arrive in another order.
    assert PLACES < began <= PLACES + 3
