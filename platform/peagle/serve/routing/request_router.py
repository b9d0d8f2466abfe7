"""Ray Serve's request router for a model's replicas: maps Serve's ids and events to the dispatcher, which decides."""

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ray.serve._private.tracing_utils import is_span_recording, set_span_attributes
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, ReplicaID, ReplicaResult, RunningReplica

from peagle.api.clients.client_header import flow_in
from peagle.api.clients.request_charge import OUTPUT_TOKENS
from peagle.api.tries import Tries, tries_of
from peagle.errors import NoReplicaError
from peagle.router.dispatch import POLICIES, Dispatcher, DispatcherReport, FleetNews, Route, Shed, ShedReason
from peagle.router.dispatch.reasons import FAILED, TURN, of_waiting
from peagle.router.snapshot import RouteRequest
from peagle.serve.reporting import TIMEOUT_S, keep_reporting
from peagle.serve.routing import router_deployment
from peagle.serve.routing.draining import draining_nodes, staying
from peagle.serve.routing.lost_nodes import OpenCalls, alive_nodes
from peagle.serve.routing.route_request import request_kinds, route_request
from peagle.serve.routing.turn_taking import TurnTakingRouter

logger = logging.getLogger("ray.serve.dispatch")

PERIOD_S = 0.25
"""Interval between readings of the Router, half a replica's report period: reports are 0.4 s old on average."""
NONE_ALIVE = frozenset({ShedReason.STALLED, ShedReason.DEAD, ShedReason.NO_REPLICAS})
DRAW_BITS = 256
"""Random bits per decision, enough to shuffle the replicas that it considers."""


@dataclass(frozen=True, slots=True)
class _Open:
    """An open request, Serve's future of its replica, and the reason of the last decision."""

    request: RouteRequest
    future: asyncio.Future[Any]
    reason: str


class PolicyRouter(TurnTakingRouter):
    """Sends each request to the replica that a dispatch policy chooses; see `peagle.router.dispatch`.

    Requests that the dispatcher cannot place stay in Serve's own bounded queue, which retries with back-off.
    """

    def initialize_state(
        self, *, model: str, policy: str, caches_prefixes: bool = True, replica_wait_s: float | None = None
    ) -> None:
        """Args:
        model: The name under which the replicas report.
        policy: The policy's name.
        caches_prefixes: Whether the replicas cache prefixes.
        replica_wait_s: How long a request waits without a running replica; None waits forever.
        """
        self.begin_turns(replica_wait_s)
        self._model = model
        self._caches_prefixes = caches_prefixes
        self._id = uuid.uuid4().hex
        self._policy = POLICIES[policy]
        self._dispatcher = Dispatcher(self._policy)
        self._draining = draining_nodes()
        self._members: frozenset[str] = frozenset()
        # Serve's last list of replicas, the nodes that were draining then, and the replicas on other nodes.
        self._listed: list[RunningReplica] | None = None
        self._listed_draining: frozenset[str] = frozenset()
        self._candidates: dict[str, RunningReplica] = {}
        self._usual_output_tokens: float = OUTPUT_TOKENS
        self._open: dict[str, _Open] = {}
        self._nodes: dict[str, str] = {}
        self._calls = OpenCalls(alive_nodes)
        self._handle: DeploymentHandle | None = None
        self._following: asyncio.Task[None] | None = None

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._staying(self._replicas_list)
        before, self._nodes = self._nodes, {each.replica_id.unique_id: each.node_id for each in replicas}
        self._calls.left(before.keys() - self._nodes.keys())
        (self._absence.ended if replicas else self._absence.began)()
        if self._following is None:  # the router's own loop runs from here on
            self._following = self._event_loop.create_task(keep_reporting(self._follow, PERIOD_S), name="fleet-news")

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._event_loop.call_soon_threadsafe(lambda: self._staying(self._replicas_list))
        if not self.curr_replicas:  # Serve's controller notices it later
            self._event_loop.call_soon_threadsafe(self._absence.began)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        candidates = self._staying(candidate_replicas)
        if pending_request is None:
            return [list(candidates.values())]
        # Otherwise Serve asks again at once, without a pause, until a replica is chosen.
        pending_request.routing_context.should_backoff = True
        try:
            ranked = self._dispatch(pending_request)
        except Exception:  # an exception here would leave the request waiting forever
            logger.exception("No decision; the request goes to any replica.")
            tries_of(pending_request.args, self._model).decided(FAILED)
            ranked = tuple(random.sample(list(candidates), len(candidates)))
        return [[candidates[name]] for name in ranked]

    def _staying(self, replicas: list[RunningReplica]) -> dict[str, RunningReplica]:
        """Return by name the replicas that are not on draining nodes, recomputed only if Serve's list changes."""
        draining = self._draining.ids
        if replicas is not self._listed or draining != self._listed_draining:
            self._candidates = {each.replica_id.unique_id: each for each in staying(replicas, draining)}
            self._listed, self._listed_draining = replicas, draining
            self._set_members(self._candidates)
        return self._candidates

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        try:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        except (asyncio.CancelledError, NoReplicaError):
            # Serve does not send the request and reports no end of it, even if a replica was already chosen.
            self._forget(pending_request.metadata.internal_request_id)
            raise

    def _hand_over(self, found_for: str, pending: PendingRequest, replica: RunningReplica) -> bool:
        tries = tries_of(pending.args, self._model)
        # Requests of one client do not exchange places: each goes to the replica of its own decision.
        if self._turns.are_of_one_flow(found_for, pending.metadata.internal_request_id):
            return False
        if replica.replica_id.unique_id in tries.failed:
            return False
        try:
            request = self._weighed(pending, tries)
        except Exception:  # its own routing task finds it a place later
            logger.exception("A request cannot be weighed.")
            return False
        self._dispatcher.forgotten(found_for)
        tries.decided(TURN)
        self._remember(_Open(request, pending.future, TURN), tries)
        return True

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: ReplicaResult) -> None:
        name = replica_id.unique_id
        if name in self._nodes:
            self._calls.sent(pending_request.metadata.internal_request_id, name, self._nodes[name], result)
        # Unlike a decision, this runs in the request's own context, whose span is Serve's span of this try.
        request = self._open.get(pending_request.metadata.internal_request_id)
        if request is not None and is_span_recording():
            set_span_attributes(route_attributes(request.request, name, request.reason))

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        # Called from one of Ray's threads, but the dispatcher may only be used on the event loop.
        self._event_loop.call_soon_threadsafe(self._over, internal_request_id, replica_id.unique_id)

    def _over(self, request_id: str, replica_id: str) -> None:
        """Forget a request, unless it was sent elsewhere since: the end of a failed try may arrive late."""
        self._calls.ended(request_id, replica_id)
        self._dispatcher.ended(request_id, time.monotonic(), at=replica_id)
        if self._dispatcher.where(request_id) is None:
            self._open.pop(request_id, None)

    def _forget(self, request_id: str) -> None:
        self._dispatcher.forgotten(request_id)
        self._open.pop(request_id, None)

    def _dispatch(self, pending: PendingRequest) -> tuple[str, ...]:
        """Decide; return the replicas to try in order, empty if the request has to wait."""
        tries = tries_of(pending.args, self._model)
        request = self._weighed(pending, tries)
        decision = self._decide(request)
        if isinstance(decision, Shed) and decision.reason is ShedReason.TRIED:
            # Only replicas that failed this request are left, and one of them may have recovered.
            decision = self._decide(replace(request, tried=frozenset()))
        if isinstance(decision, Route):
            self._absence.ended()
        elif decision.reason in NONE_ALIVE:
            self._absence.began()
        if isinstance(decision, Shed):
            tries.waits(decision.retry_after_s)
        if isinstance(decision, Route) or request.request_id not in self._open:
            tries.decided(of_waiting(decision.reason) if isinstance(decision, Shed) else decision.reason)
        self._remember(_Open(request, pending.future, decision.reason), tries)
        return decision.ranked if isinstance(decision, Route) else ()

    def _weighed(self, pending: PendingRequest, tries: Tries) -> RouteRequest:
        """Return the properties of a request that a decision uses."""
        metadata, body = pending.metadata, pending.args[0] if pending.args else None
        request = route_request(
            metadata.internal_request_id, body, metadata.session_id, self._usual_output_tokens, tries.failed
        )
        if self._policy.by_kind:
            request = replace(request, kinds=request_kinds(body, _client(pending)))
        if not self._caches_prefixes:
            request = replace(request, affinity_key=None, prefix_tokens=0)
        return request

    def _decide(self, request: RouteRequest) -> Route | Shed:
        return self._dispatcher.dispatch(request, time.monotonic(), random.getrandbits(DRAW_BITS))

    def _remember(self, new: _Open, tries: Tries) -> None:
        """Keep an open request until it ends, or is cancelled before it is sent."""
        request = new.request

        def settled(future: "asyncio.Future[Any]") -> None:
            known = self._open.get(request.request_id)
            if known is None or known.future is not future:
                return  # this try was abandoned
            if future.cancelled() or future.exception() is not None:
                self._forget(request.request_id)
            else:  # Serve may have found the first choice full
                replica_id = future.result().replica_id.unique_id
                self._dispatcher.moved(request, replica_id, time.monotonic())
                tries.sent(replica_id)

        known = self._open.get(request.request_id)
        if known is None or known.future is not new.future:  # a refused request gets a new future from Serve
            new.future.add_done_callback(settled)
        self._open[request.request_id] = new

    def _set_members(self, replica_ids: Iterable[str]) -> None:
        members = frozenset(replica_ids)
        if members != self._members:
            self._members = members
            self._dispatcher.set_members(members)

    async def _follow(self) -> None:
        """Report to the Router, and apply its news of the fleet."""
        mine = DispatcherReport(self._id, self._dispatcher.open_requests)
        # Dated at the call, so that a late answer does not look newer than the requests that were sent meanwhile.
        asked_s = time.monotonic()
        news = await asyncio.to_thread(self._ask, mine)
        self._dispatcher.set_dispatchers(news.dispatchers)
        self._dispatcher.set_right_ratios(news.right_ratios)
        known = [each for each in news.received(asked_s) if each.replica_id in self._members]
        self._dispatcher.report(known)
        if lengths := [each.output_tokens_mean for each in known if each.output_tokens_mean]:
            self._usual_output_tokens = sum(lengths) / len(lengths)

    def _ask(self, mine: DispatcherReport) -> FleetNews:
        """Ask the Router, from a thread: the first use of a handle may wait for Serve's controller."""
        if self._handle is None:
            handle = DeploymentHandle(router_deployment.NAME, self.app_name)
            # A handle that routes on the caller's event loop cannot be used from a thread.
            handle._init(_run_router_in_separate_loop=True)
            self._handle = handle  # not before, because its next use would make it such a handle
        response = self._handle.news.remote(self._model, mine)
        try:
            news: FleetNews = response.result(timeout_s=TIMEOUT_S)
        except TimeoutError:
            response.cancel()  # otherwise Serve keeps the call for the next Router
            raise
        return news


def _client(pending: PendingRequest) -> str:
    """Return the name of the request's client; empty if there is none."""
    flows = (flow_in(getattr(argument, "headers", None) or {}) for argument in pending.args)
    return next((flow.client for flow in flows if flow is not None), "")


def route_attributes(request: RouteRequest, replica_id: str, reason: str) -> dict[str, Any]:
    """Return the span attributes of one try: its replica, the reason, and replicas that failed before."""
    return {
        "peagle.dispatch.replica_id": replica_id,
        "peagle.dispatch.reason": reason,
        "peagle.dispatch.tried": sorted(request.tried),
    }
