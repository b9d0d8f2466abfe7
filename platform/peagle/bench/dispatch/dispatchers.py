"""Fleets of timed replicas on real Ray Serve, one per request router, and processes that call them."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from peagle.api.ledger import Ledger
from peagle.api.tries import Tries
from peagle.bench.dispatch.compared_policies import COMPARED, ROUND_ROBIN
from peagle.bench.dispatch.fleet_load import Arrival, Sample
from peagle.bench.dispatch.timed_server import TimedRequest, TimedServer
from peagle.config import parse_deployment
from peagle.import_paths import REQUEST_ROUTER
from peagle.router.dispatch import POLICIES
from peagle.serve.routing.router_deployment import bind_router
from peagle.simulator.timed_engine import TimedModel

APP = "dispatch"
QUIET = {"enable_access_log": False, "log_level": "WARNING"}


class RoundRobinRouter(RequestRouter):  # type: ignore[misc]  # Ray ships no types
    """Takes turns."""

    def initialize_state(self, **_: Any) -> None:
        self._turns = count()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        ordered = sorted(candidate_replicas, key=lambda replica: replica.replica_id.unique_id)
        first = next(self._turns) % len(ordered)
        return [[replica] for replica in (*ordered[first:], *ordered[:first])]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What to start: one replica per entry of `speeds` for each policy, and `callers` dispatching processes."""

    speeds: Sequence[float]
    callers: int
    policies: Sequence[str] = COMPARED
    timed: TimedModel = field(default_factory=TimedModel)


class Front:
    """The application's ingress, which only joins all fleets in one application."""

    def __init__(self, **fleets: DeploymentHandle) -> None:
        self._fleets = fleets


class _Tried:
    """Passes a request's tries to the request router in this process, and nothing to the replica."""

    def __init__(self, tries: Tries | None = None) -> None:
        self.tries = tries

    def __reduce__(self) -> Any:
        return _Tried, ()


@ray.remote(num_cpus=0)
class Caller:
    """A process that dispatches like an ingress and counts the decisions."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    async def warm(self, policies: Sequence[str]) -> None:
        """Create each policy's request router, and wait until it has replicas to choose from."""
        self._handles = {policy: serve.get_deployment_handle(policy, APP).options(stream=True) for policy in policies}
        for handle in self._handles.values():
            async for _ in handle.completions.remote(TimedRequest([0], 1)):
                pass

    async def run(self, policy: str, arrivals: Sequence[Arrival], starts_at_s: float) -> list[Sample]:
        """Send every request when it is due; `starts_at_s` is on the clock `time.time`, which all processes share."""
        handle = self._handles[policy]
        sending = (self._send(handle, Tries(policy, self.ledger), each, starts_at_s) for each in arrivals)
        return list(await asyncio.gather(*sending))

    async def _send(self, handle: DeploymentHandle, tries: Tries, arrival: Arrival, starts_at_s: float) -> Sample:
        body = TimedRequest(arrival.prompt, arrival.output_tokens, arrival.shared_tokens)
        await asyncio.sleep(max(0.0, starts_at_s + arrival.at_s - time.time()))
        # Measured from the due time: a late sender must not make a slow answer look fast.
        due_s, came_s = starts_at_s + arrival.at_s, []
        async for said in handle.completions.remote(body, _Tried(tries)):  # noqa: B007  # the last value is read after the loop
            came_s.append(time.time() - due_s)
        return Sample(arrival.at_s, came_s[0], came_s[-1], said["tokens"], said["replica"])


def start(plan: FleetPlan) -> list[Any]:
    """Deploy the fleets on the connected cluster; return the callers when every fleet answers each of them."""
    serve.start(proxy_location="Disabled", logging_config=QUIET)
    serve.run(_application(plan), name=APP, route_prefix=None, logging_config=QUIET)
    callers = [Caller.remote() for _ in range(plan.callers)]  # type: ignore[attr-defined]
    ray.get([caller.warm.remote(plan.policies) for caller in callers])
    return callers


def run(callers: Sequence[Any], policy: str, arrivals: Sequence[Arrival], lead_s: float = 0.5) -> list[Sample]:
    """Distribute the requests over the callers in turn; return their samples in no particular order."""
    starts_at_s = time.time() + lead_s
    parts = [arrivals[place :: len(callers)] for place in range(len(callers))]
    answers = ray.get(
        [caller.run.remote(policy, part, starts_at_s) for caller, part in zip(callers, parts, strict=True)]
    )
    return [sample for answer in answers for sample in answer]


def _application(plan: FleetPlan) -> serve.Application:
    raw = {"name": APP, "target": {"source": "timed/stand-in"}, "speculation": {"enabled": False}}
    deployment = parse_deployment({**raw, "replicas": {"min": len(plan.speeds), "max": len(plan.speeds)}}, origin=APP)
    # Each policy's fleet reports under the policy's name.
    router = bind_router({policy: deployment for policy in plan.policies if policy in POLICIES})
    fleets = {
        policy: serve.deployment(
            TimedServer,
            name=policy,
            num_replicas=len(plan.speeds),
            max_ongoing_requests=plan.timed.max_ongoing_requests,
            ray_actor_options={"num_cpus": 0},
            request_router_config=_router_config(policy),
        ).bind(policy, plan.timed, list(plan.speeds), router if policy in POLICIES else None)
        for policy in plan.policies
    }
    names: Mapping[str, Any] = {policy.replace("-", "_"): fleet for policy, fleet in fleets.items()}
    return serve.deployment(Front, name="front", ray_actor_options={"num_cpus": 0}).bind(**names)


def _router_config(policy: str) -> RequestRouterConfig:
    if policy in POLICIES:
        path = REQUEST_ROUTER
        return RequestRouterConfig(request_router_class=path, request_router_kwargs={"model": policy, "policy": policy})
    if policy == ROUND_ROBIN:
        return RequestRouterConfig(request_router_class=RoundRobinRouter)
    return RequestRouterConfig()
