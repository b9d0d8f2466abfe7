"""Requests of several clients that wait for a place, under Serve's own routing."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest

from peagle.api.clients.request_charge import Charge
from peagle.api.ingress import TriedRequestInfo
from peagle.api.tries import Tries
from peagle.router.fairness.client_terms import Client
from peagle.serve.routing.draining import DrainAwareRouter
from peagle.serve.routing.request_router import PolicyRouter
from peagle.serve.routing.turn_taking import TurnTakingRouter

DEPLOYMENT = DeploymentID("m", "app")
FULL = ReplicaID("full", DEPLOYMENT)
PLACES = 4


class Filling:
    """A replica whose places fill up with what is sent to it."""

    max_ongoing_requests, node_id, multiplexed_model_ids = PLACES, "node", frozenset[str]()
    availability_zone = None

    def __init__(self, held: list[str]) -> None:
        self.replica_id, self.held = FULL, held

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return len(self.held)


@pytest.fixture
def held() -> list[str]:
    return [f"held-{number}" for number in range(PLACES)]


@pytest.fixture(params=[PolicyRouter, DrainAwareRouter])
async def router(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, held: list[str]) -> TurnTakingRouter:
    kind: Any = request.param
    # Where the class looks it up: a test before may have had the module imported anew.
    names = kind.initialize_state.__globals__
    monkeypatch.setitem(names, "draining_nodes", lambda: SimpleNamespace(ids=frozenset()))
    made: TurnTakingRouter = kind(
        deployment_id=DEPLOYMENT, handle_source=DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
    )
    made.initialize_state(model="m", policy="soonest")
    made._following = asyncio.create_task(asyncio.sleep(0))  # there is no Router to ask
    made.update_replicas([Filling(held)])
    made.update_backoff_params(0.001, 1.0, 0.001)
    return made


def of_client(request_id: str, client: str) -> PendingRequest:
    tries = Tries("m")
    tries.charge = Charge(Client(client), "m", 0, 100)
    metadata = RequestMetadata(request_id=request_id, internal_request_id=request_id)
    info = TriedRequestInfo({}, tries)
    return PendingRequest(args=[SimpleNamespace(prompt="hello"), info], kwargs={}, metadata=metadata)


async def turns(until: Callable[[], bool] = lambda: False, most: int = 5) -> None:
    """Let the loop turn until something holds, or so often."""
    for _ in range(most):
        if until():
            return
        await asyncio.sleep(0)


async def test_while_places_are_short_clients_get_them_by_turns(router: TurnTakingRouter, held: list[str]) -> None:
    order: list[str] = []

    async def ask(request: PendingRequest) -> None:
        await router._choose_replica_for_request(request)
        order.append(request.metadata.internal_request_id)
        held.append(order[-1])
        router.replica_queue_len_cache.update(FULL, len(held))

    asked = [asyncio.create_task(ask(of_client(f"many-{number}", "many"))) for number in range(50)]
    await turns(lambda: router.num_routing_tasks_in_backoff == 2, most=1000)
    asked += [asyncio.create_task(ask(of_client(f"few-{number}", "few"))) for number in range(2)]
    asked += [asyncio.create_task(ask(of_client("leaves", "leaves")))]
    await turns()
    asked.pop().cancel()
    async with asyncio.timeout(10):
        while len(order) < 52:
            if held:
                router.on_request_completed(FULL, held.pop())
                router.replica_queue_len_cache.update(FULL, len(held))
            await asyncio.sleep(0.003)
    for request_id in held:
        router.on_request_completed(FULL, request_id)
    assert order[0] == "few-0"
    assert order[2] == "few-1", order[:4]
    many = [each for each in order if each.startswith("many")]
    assert sorted(many) == sorted(f"many-{number}" for number in range(50))
    if isinstance(router, DrainAwareRouter):
        assert many == [f"many-{number}" for number in range(50)]
    await asyncio.gather(*asked)
    await turns()
    assert len(router._waiting) == len(router._taken_up) == 0
    if isinstance(router, PolicyRouter):
        assert router._dispatcher.open_requests == len(router._open) == 0


@pytest.mark.parametrize("router", [PolicyRouter], indirect=True)
async def test_a_place_on_a_replica_that_has_failed_a_request_goes_to_another(
    router: TurnTakingRouter, held: list[str]
) -> None:
    many = [asyncio.create_task(router._choose_replica_for_request(of_client(f"many-{n}", "many"))) for n in range(3)]
    await turns(lambda: router.num_routing_tasks_in_backoff == 2, most=1000)
    failed = of_client("few", "few")
    failed.args[1].tries.failed = frozenset({FULL.unique_id})
    few = asyncio.create_task(router._choose_replica_for_request(failed))
    await turns()
    held.clear()
    await asyncio.wait([*many, few], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert many[0].done() or many[1].done()
    await asyncio.gather(*many, few)  # no other replica is there
