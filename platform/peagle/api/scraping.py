"""Routes by which Prometheus reads metrics and operators pause counting."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from peagle.api import http_metrics
from peagle.api.api_settings import ApiSettings
from peagle.api.body import read_json, validate
from peagle.api.fleet_calls import ask_models, ask_replicas, deployment_states, own_handle
from peagle.api.http_metrics import Value
from peagle.api.ledger import Ledger
from peagle.api.loopback import require_loopback
from peagle.errors import NotFoundError

logger = logging.getLogger(__name__)

LEAST_S = 1.0
"""Minimum time that ingress processes get to answer; they wait for nothing else."""

States = Mapping[tuple[str, str], Counter[str]]
"""Number of replicas in each state, by application and deployment."""


class CountingRequest(BaseModel):
    """Whether requests and steps are counted from now on."""

    model_config = ConfigDict(extra="forbid", strict=True)

    counting: bool


class MetricsRoutes:
    """Handlers of `/metrics` and `/fleet/metrics`, for an ingress."""

    app: FastAPI
    _default_serve_handles: Mapping[str, DeploymentHandle]
    _router: DeploymentHandle | None
    _ingresses: DeploymentHandle | None = None
    _states: asyncio.Task[States] | None = None

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: Prometheus text. Raises NotFoundError if metrics are off."""
        scrape = await self.scrape(counting_settings(request).probe_timeout_s)
        return Response(http_metrics.exposition(scrape), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def scrape(self, timeout_s: float) -> http_metrics.Scrape:
        """Ask every process for its figures."""
        asked_states = asyncio.create_task(self._deployment_states(timeout_s))
        replicas, estimates, ingress, states = await asyncio.gather(
            ask_models(self._default_serve_handles, "replica_metrics", timeout_s),
            self._estimates(timeout_s),
            self._ingress_values(timeout_s, asked_states),
            asked_states,
        )
        of_models = {
            model: states[deployment]
            for model, handle in self._default_serve_handles.items()
            if (deployment := (handle.app_name, handle.deployment_name)) in states
        }
        return http_metrics.Scrape(ingress, replicas, estimates, of_models)

    async def count(self, request: Request) -> JSONResponse:
        """PUT /fleet/metrics: start or pause counting of new requests and steps in every running process.

        `/metrics` keeps answering, and depth and dispatch are not affected. The answer holds the number of processes
        that were reached.

        Raises NotFoundError if metrics are off.
        """
        require_loopback(request)
        settings = counting_settings(request)
        wanted = validate(CountingRequest, await read_json(request, settings)).counting
        timeout_s = settings.probe_timeout_s
        replicas, all_ingresses = await asyncio.gather(
            ask_models(self._default_serve_handles, "count_steps", timeout_s, wanted),
            self._all_ingresses(timeout_s, self._deployment_states(timeout_s)),
        )
        here = await self.count_requests(wanted)
        ingresses = [here]
        if all_ingresses is not None:
            ingresses = list({here, *await ask_replicas(all_ingresses, "count_requests", timeout_s, wanted)})
        told = {model: len(answers) for model, answers in replicas.items()}
        return JSONResponse({"counting": wanted, "ingresses": len(ingresses), "replicas": told})

    async def http_values(self) -> tuple[str, list[Value]]:
        """Return this process's name and counters to the process that answers a scrape."""
        metrics = self._ledger.metrics
        metrics.expect(self._default_serve_handles)
        return serve.get_replica_context().replica_id.unique_id, metrics.values()

    async def count_requests(self, counting: bool) -> str:
        """Start or pause counting of this process's new requests; return its name."""
        self._ledger.metrics.counting = counting
        name: str = serve.get_replica_context().replica_id.unique_id
        return name

    @property
    def _ledger(self) -> Ledger:
        ledger: Ledger = self.app.state.ledger
        return ledger

    async def ingress_values(self, timeout_s: float) -> dict[str, list[Value]]:
        """Return every ingress process's counters, by its name."""
        return await self._ingress_values(timeout_s, self._deployment_states(timeout_s))

    async def _ingress_values(self, timeout_s: float, asked_states: Awaitable[States]) -> dict[str, list[Value]]:
        """Return every ingress process's counters, at least this process's own."""
        until_s = time.monotonic() + timeout_s
        everyone, mine = await self._all_ingresses(timeout_s, asked_states), await self.http_values()
        if everyone is None:
            return dict([mine])
        # Prometheus does not wait forever, so the last call gets the remaining time.
        left_s = max(LEAST_S, until_s - time.monotonic())
        return dict([mine, *await ask_replicas(everyone, "http_values", left_s)])

    async def _all_ingresses(self, timeout_s: float, asked_states: Awaitable[States]) -> DeploymentHandle | None:
        """Return a handle to all ingress processes; None if this is the only one, or Serve lists no others."""
        states, here = await asked_states, serve.get_replica_context()
        alone = states.get((here.app_name, here.deployment), Counter()).total() == 1
        # No states means that Serve's controller does not answer: a scrape must not wait for it twice.
        if alone or (not states and self._ingresses is None):
            return None
        try:
            if self._ingresses is None:
                async with asyncio.timeout(timeout_s):
                    self._ingresses = await own_handle()
        except Exception as error:  # a scrape without the other processes is better than none
            logger.warning("Serve did not list the other ingress processes: %r", error)
        return self._ingresses

    async def _estimates(self, timeout_s: float) -> dict[str, Any]:
        """Return the Router's estimates for replicas, by model; empty if it does not answer in time."""
        if self._router is None:
            return {}
        try:
            async with asyncio.timeout(timeout_s):
                answer: dict[str, Any] = await self._router.estimates.remote()
        except Exception as error:  # a scrape without estimates is better than none
            logger.warning("The Router did not return its estimates: %r", error)
            return {}
        return answer

    async def _deployment_states(self, timeout_s: float) -> States:
        if self._states is None or self._states.done():
            # One call at a time: while Serve's controller does not answer, each holds a thread of this process, and
            # large bodies and API keys are read in threads, too.
            self._states = asyncio.create_task(deployment_states(), name="deployment states")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._states)
        except Exception as error:  # a scrape without states is better than none
            logger.warning("Serve did not return its replicas' states: %r", error)
            return {}


def counting_settings(request: Request) -> ApiSettings:
    """Return the settings. Raises NotFoundError if the server was started without metrics."""
    settings: ApiSettings = request.app.state.settings
    if not settings.metrics:
        raise NotFoundError("Metrics are off; start peagle serve without --no-metrics.", code="metrics_off")
    return settings
