"""The request router under Serve's own routing: its in-flight counts match what Serve sends."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.handle_options import InitHandleOptions
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest

from peagle.api.clients.client_header import CLIENT_HEADER, told
from peagle.api.clients.request_charge import Charge
from peagle.api.ingress import TriedRequestInfo
from peagle.api.ledger import Ledger
from peagle.api.tries import Tries
from peagle.errors import NoReplicaError
from peagle.router.fairness.client_terms import Client
from peagle.router.snapshot import ReplicaSnapshot, ReplicaState, RequestRates
from peagle.serve.routing.draining import DrainAwareRouter
from peagle.serve.routing.lost_nodes import OpenCalls
from peagle.serve.routing.request_router import PolicyRouter
from peagle.serve.routing.route_request import request_kinds
from peagle.serve.routing.turn_taking import TurnTakingRouter

DEPLOYMENT = DeploymentID("m", "app")
FULL = ReplicaID("full", DEPLOYMENT)


class Replica:
    """The part of a running replica that routing reads."""

    max_ongoing_requests = 4

    def __init__(self, name: str, node_id: str = "node") -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.node_id = node_id

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


@pytest.fixture
async def router(monkeypatch: pytest.MonkeyPatch) -> PolicyRouter:
    # Where the class looks it up: an earlier test may have reimported the module.
    names = PolicyRouter.initialize_state.__globals__
    monkeypatch.setitem(names, "draining_nodes", lambda: SimpleNamespace(ids=frozenset()))
    made = PolicyRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    made.initialize_state(model="m", policy="soonest", replica_wait_s=0.2)
    made._following = asyncio.create_task(asyncio.sleep(0))  # there is no Router to ask
    made.update_replicas([Replica("a"), Replica("b")])
    return made


def pending(request_id: str, tries: Tries | None = None, headers: Mapping[str, str] | None = None) -> PendingRequest:
    metadata = RequestMetadata(request_id=request_id, internal_request_id=request_id)
    info = TriedRequestInfo(dict(headers or {}), tries or Tries("m"))
    return PendingRequest(args=[SimpleNamespace(prompt="hello"), info], kwargs={}, metadata=metadata)


async def turns(until: Callable[[], bool] = lambda: False, most: int = 5) -> None:
    """Run the loop until a condition holds, up to a number of turns."""
    for _ in range(most):
        if until():
            return
        await asyncio.sleep(0)


async def test_a_request_is_in_flight_from_the_choice_to_its_end(router: PolicyRouter) -> None:
    replica: Any = await router._choose_replica_for_request(pending("1"))
    await turns()
    assert router._dispatcher.where("1") == replica.replica_id.unique_id
    router.on_request_completed(replica.replica_id, "1")
    await turns()
    assert router._dispatcher.open_requests == len(router._open) == 0


@pytest.mark.parametrize(("policy", "is_known"), [("by-acceptance", True), ("soonest", False)])
async def test_a_request_is_known_by_its_client_where_the_policy_weighs_that(
    router: PolicyRouter, policy: str, is_known: bool
) -> None:
    router.initialize_state(model="m", policy=policy)
    router._following = asyncio.create_task(asyncio.sleep(0))
    router.update_replicas([Replica("a"), Replica("b")])
    asked = pending("1", headers={CLIENT_HEADER: told(Client("ann"))})
    await router._choose_replica_for_request(asked)
    assert router._open["1"].request.kinds == (request_kinds(asked.args[0], "ann") if is_known else ())


async def test_a_client_that_leaves_as_its_replica_is_chosen_leaves_nothing_in_flight(router: PolicyRouter) -> None:
    request = pending("1")
    asked = asyncio.create_task(router._choose_replica_for_request(request))
    await turns(request.future.done, most=1000)
    assert not asked.done()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await turns()
    assert router._dispatcher.open_requests == len(router._open) == 0


async def test_a_client_that_leaves_while_nothing_can_take_its_request_leaves_nothing(router: PolicyRouter) -> None:
    dead = [ReplicaSnapshot(name, 0.0, ReplicaState.DEAD) for name in router._dispatcher.fleet.replica_ids]
    router._dispatcher.report(dead)
    asked = asyncio.create_task(router._choose_replica_for_request(pending("1")))
    await turns(lambda: bool(router._open), most=1000)
    assert router._open
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await turns()
    assert router._dispatcher.open_requests == len(router._open) == 0


@pytest.mark.parametrize("goes", ["it dies", "Serve lists none", "its engine has ended"])
async def test_a_request_waits_for_a_replica_for_a_bounded_time_and_leaves_nothing(
    router: PolicyRouter, goes: str
) -> None:
    ids = list(router.curr_replicas)
    match goes:
        case "it dies":
            for replica_id in ids:
                router.on_replica_actor_died(replica_id)
        case "Serve lists none":
            router.update_replicas([])
        case _:
            now_s = time.monotonic()
            router._dispatcher.report(ReplicaSnapshot(each.unique_id, now_s, ReplicaState.DEAD) for each in ids)
    await turns()
    with pytest.raises(NoReplicaError):
        async with asyncio.timeout(10):
            await router._choose_replica_for_request(pending("1"))
    assert router._dispatcher.open_requests == len(router._open) == 0
    # Another replica becomes available before the timeout.
    asked = asyncio.create_task(router._choose_replica_for_request(pending("2")))
    await turns()
    router.update_replicas([Replica("c")])
    chosen: Any = await asked
    assert chosen.replica_id.unique_id == "c"


async def test_clients_that_cannot_queue_either_are_told_when_a_place_is_expected(router: PolicyRouter) -> None:
    ledger = Ledger()
    told = ledger.waits
    full = ReplicaSnapshot(
        "",
        time.monotonic(),
        running_requests=256,
        prefill_tokens_per_s=100.0,
        request_tokens_per_s=RequestRates.of({1: 20.0, 256: 10.0}),
        queued_prompt_tokens=2000,
    )
    router._dispatcher.report(replace(full, replica_id=name) for name in router._dispatcher.fleet.replica_ids)
    assert router._dispatch(pending("1", Tries("m", ledger))) == ()
    assert told.of("m", 1.0) == pytest.approx(20.0, abs=1.0)
    assert (told.of("m", 60.0), told.of("another", 3.0)) == (60.0, 3.0)


@pytest.mark.parametrize("caches_prefixes", [True, False])
async def test_a_prefix_has_a_home_only_where_engines_keep_prefixes(
    router: PolicyRouter, caches_prefixes: bool
) -> None:
    router._caches_prefixes = caches_prefixes
    asked = pending("1")
    asked.args[0].prompt = "the same beginning " * 40
    await router._choose_replica_for_request(asked)
    request = router._open["1"].request
    assert (request.affinity_key is not None, request.prefix_tokens > 0) == (caches_prefixes, caches_prefixes)
    assert request.prompt_tokens == 190


async def test_each_try_at_a_request_goes_elsewhere_until_all_have_had_it(router: PolicyRouter) -> None:
    asked, tries = [], Tries("m")
    for _ in range(3):
        replica: Any = await router._choose_replica_for_request(pending("1", tries))
        await turns()
        tries.lost()
        asked.append(replica.replica_id.unique_id)
        router.on_request_completed(replica.replica_id, "1")
        await turns()
    assert set(asked[:2]) == {"a", "b"}
    assert asked[2] in {"a", "b"}
    assert router._dispatcher.open_requests == 0


class Router:
    """Serve's routing to the Router deployment, which cannot be set up at first."""

    def __init__(self) -> None:
        self.attempts = 0
        self.asked = threading.Event()

    def create(self, handle_id: str, deployment_id: DeploymentID, handle_options: Any) -> "Router":
        self.attempts += 1
        if self.attempts == 1:
            raise RuntimeError("The GCS does not answer.")
        if not handle_options._run_router_in_separate_loop:
            asyncio.get_running_loop()  # raises in a thread, as Serve does
        return self

    def assign_request(self, *_: Any) -> "concurrent.futures.Future[Any]":
        self.asked.set()
        return concurrent.futures.Future()


async def test_the_router_is_asked_even_if_it_could_not_be_reached_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    names, serve = PolicyRouter.initialize_state.__globals__, Router()
    # RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP=0, which Serve reads on import.
    on_one_loop = partial(InitHandleOptions, _run_router_in_separate_loop=False)
    monkeypatch.setattr(InitHandleOptions, "create", on_one_loop)
    monkeypatch.setitem(names, "draining_nodes", lambda: SimpleNamespace(ids=frozenset()))
    monkeypatch.setitem(names, "DeploymentHandle", partial(DeploymentHandle, _create_router=serve.create))
    monkeypatch.setitem(names, "PERIOD_S", 0.001)
    monkeypatch.setitem(names, "TIMEOUT_S", 0.001)
    made = PolicyRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    made.initialize_state(model="m", policy="soonest")
    made.update_replicas([Replica("a")])
    assert await asyncio.to_thread(serve.asked.wait, 10.0)


class Call:
    def __init__(self) -> None:
        self.cancelled = asyncio.Event()

    def cancel(self) -> None:
        self.cancelled.set()


async def test_what_was_sent_to_a_node_that_is_gone_ends_and_nothing_else(
    router: PolicyRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that leaves a live node still answers its requests."""
    replicas = {name: Replica(name, node_id) for name, node_id in (("a", "gone"), ("b", "left"), ("c", "stays"))}
    alive = [{"gone", "left", "stays"}, {"left", "stays"}]  # Ray learns of a death later than Serve
    monkeypatch.setattr(router, "_calls", OpenCalls(lambda: alive.pop(0) if alive[1:] else alive[0], period_s=0.01))
    router.update_replicas([*replicas.values()])
    calls = {name: Call() for name in replicas}
    for name, replica in replicas.items():
        router.on_request_routed(pending(name), replica.replica_id, calls[name])
    answered = Call()
    router.on_request_routed(pending("over"), replicas["a"].replica_id, answered)
    router.on_request_completed(replicas["a"].replica_id, "over")
    await turns()
    router.update_replicas([replicas["c"]])
    async with asyncio.timeout(10):
        await calls["a"].cancelled.wait()
        router.on_request_completed(replicas["b"].replica_id, "b")
        assert router._calls._ending is not None
        await router._calls._ending
    assert {name: call.cancelled.is_set() for name, call in calls.items()} == {"a": True, "b": False, "c": False}
    assert not answered.cancelled.is_set()


async def test_the_list_of_replicas_is_read_when_it_changes_or_a_node_drains_and_not_for_each_request(
    router: PolicyRouter,
) -> None:
    read = []

    class Listed(Replica):
        @property
        def node_id(self) -> str:
            read.append(self.replica_id.unique_id)
            return "node-" + self.replica_id.unique_id

        @node_id.setter
        def node_id(self, _: str) -> None:
            pass

    router.update_replicas([Listed("a"), Listed("b")])
    members = router._dispatcher.fleet.replica_ids
    read.clear()
    for number in range(3):
        await router._choose_replica_for_request(pending(str(number)))
    assert sorted(members) == ["a", "b"]
    assert not read
    router._draining = SimpleNamespace(ids=frozenset({"node-a"}))
    for number in range(3, 6):
        chosen: Any = await router._choose_replica_for_request(pending(str(number)))
        assert chosen.replica_id.unique_id == "b"
    assert list(router._dispatcher.fleet.replica_ids) == ["b"]
    assert sorted(read) == ["a", "b"]


class Filling(Replica):
    """A replica whose places fill up with the requests sent to it."""

    multiplexed_model_ids, availability_zone = frozenset[str](), None

    def __init__(self, held: list[str]) -> None:
        super().__init__(FULL.unique_id)
        self.held = held

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return len(self.held)


@pytest.fixture
def held() -> list[str]:
    return [f"held-{number}" for number in range(Replica.max_ongoing_requests)]


@pytest.fixture(params=[PolicyRouter, DrainAwareRouter])
async def full(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, held: list[str]) -> TurnTakingRouter:
    kind: Any = request.param
    # Where the class looks it up: an earlier test may have reimported the module.
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
    return pending(request_id, tries)


async def test_while_places_are_short_clients_get_them_by_turns(full: TurnTakingRouter, held: list[str]) -> None:
    order: list[str] = []

    async def ask(request: PendingRequest) -> None:
        await full._choose_replica_for_request(request)
        order.append(request.metadata.internal_request_id)
        held.append(order[-1])
        full.replica_queue_len_cache.update(FULL, len(held))

    asked = [asyncio.create_task(ask(of_client(f"many-{number}", "many"))) for number in range(50)]
    await turns(lambda: full.num_routing_tasks_in_backoff == 2, most=1000)
    asked += [asyncio.create_task(ask(of_client(f"few-{number}", "few"))) for number in range(2)]
    asked += [asyncio.create_task(ask(of_client("leaves", "leaves")))]
    await turns()
    asked.pop().cancel()
    async with asyncio.timeout(10):
        while len(order) < 52:
            if held:
                full.on_request_completed(FULL, held.pop())
                full.replica_queue_len_cache.update(FULL, len(held))
            await asyncio.sleep(0.003)
    for request_id in held:
        full.on_request_completed(FULL, request_id)
    assert order[0] == "few-0"
    assert order[2] == "few-1", order[:4]
    many = [each for each in order if each.startswith("many")]
    assert sorted(many) == sorted(f"many-{number}" for number in range(50))
    if isinstance(full, DrainAwareRouter):
        assert many == [f"many-{number}" for number in range(50)]
    await asyncio.gather(*asked)
    await turns()
    assert len(full._waiting) == len(full._taken_up) == 0
    if isinstance(full, PolicyRouter):
        assert full._dispatcher.open_requests == len(full._open) == 0


@pytest.mark.parametrize("full", [PolicyRouter], indirect=True)
async def test_a_place_on_a_replica_that_has_failed_a_request_goes_to_another(
    full: TurnTakingRouter, held: list[str]
) -> None:
    many = [asyncio.create_task(full._choose_replica_for_request(of_client(f"many-{n}", "many"))) for n in range(3)]
    await turns(lambda: full.num_routing_tasks_in_backoff == 2, most=1000)
    failed = of_client("few", "few")
    failed.args[1].tries.failed = frozenset({FULL.unique_id})
    few = asyncio.create_task(full._choose_replica_for_request(failed))
    await turns()
    held.clear()
    await asyncio.wait([*many, few], return_when=asyncio.FIRST_COMPLETED, timeout=10)
    assert many[0].done() or many[1].done()
    await asyncio.gather(*many, few)  # no other replica is there


@pytest.mark.parametrize("full", [DrainAwareRouter], indirect=True)
async def test_places_are_given_as_fast_as_they_come_whose_turn_it_is(full: TurnTakingRouter, held: list[str]) -> None:
    """A task that finds places for other requests does not pause after each."""
    full.update_backoff_params(0.025, 2.0, 0.5)
    # Requests refused by a full replica go before those that two tasks have taken.
    asked = []
    for number in range(100):
        request = of_client(f"many-{number}", "many")
        asked.append(asyncio.create_task(full._choose_replica_for_request(request, is_retry=True)))
        await turns()
    await turns(lambda: full.num_routing_tasks_in_backoff == 2, most=1000)
    held.clear()
    async with asyncio.timeout(10):
        await asyncio.gather(*asked)
