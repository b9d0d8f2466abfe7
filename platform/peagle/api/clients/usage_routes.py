"""Whose a request is and what it takes, for an ingress; and the route by which operators read what clients used."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from functools import partial
from typing import Any

from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle import metrics
from peagle.api.api_settings import ApiSettings
from peagle.api.clients.metered_replies import metered
from peagle.api.clients.request_charge import Charge, charge_of
from peagle.api.dialects.stream_kinds import StreamKind
from peagle.api.http_metrics import Value
from peagle.api.ledger import Ledger
from peagle.api.loopback import require_loopback
from peagle.api.scraping import MetricsRoutes, counting_settings
from peagle.config import Deployment
from peagle.errors import LimitError, OverloadedError, RouterLostError
from peagle.metrics import Metric
from peagle.router.fairness.client_terms import Client
from peagle.router.fairness.limit_book import LimitAnswer, LimitReport


class UsageRoutes(MetricsRoutes):
    """Charges clients for requests; handler of `/fleet/usage`."""

    _router: DeploymentHandle | None
    _deployments: dict[str, Deployment]

    async def admit(self, request: Request, body: Any, model: str, generates: bool) -> Charge | None:
        """Charge a request to its client, whose API key came with it; None where no keys are asked for.

        Raises:
            LimitError: It is beyond a limit of the client's.
            OverloadedError: The client holds as many places of the model as it leaves to others.
        """
        client: Client | None = getattr(request.state, "client", None)
        if client is None:
            return None
        ledger: Ledger = request.app.state.ledger
        charge = charge_of(client, model, body, ledger.lengths.of(model) if generates else None)
        try:
            await ledger.limits.admit(charge, self._ask_limits)
        except LimitError as error:
            if request.state.counted:
                ledger.metrics.refused(client.name, error.limit)
            raise
        request.state.charge = charge
        places = self._places(model)
        if places is not None:
            charge.has_place = ledger.places[model].take(client.name, places)
            if not charge.has_place:
                settings: ApiSettings = request.app.state.settings
                problem = f"The API key {client.name} has as many requests open as it may while others need a place."
                raise OverloadedError(problem, ledger.waits.of(model, settings.retry_after_s))
        return charge

    def _places(self, model: str) -> int | None:
        """How many requests one ingress process, of as many as there are replicas, may have open; None: any number."""
        if (deployment := self._deployments.get(model)) is None or deployment.routing.max_queued_requests == -1:
            return None
        routing = deployment.routing
        return routing.max_ongoing_requests + routing.max_queued_requests // deployment.replicas.max

    def metered(
        self, request: Request, replies: AsyncGenerator[Any, None], body: Any, charge: Charge | None, kind: StreamKind
    ) -> AsyncGenerator[Any, None]:
        """A replica's replies, from which the charge learns what was used."""
        if charge is None:
            return replies
        limits = request.app.state.ledger.limits
        return metered(replies, body, charge, partial(limits.begin, charge), partial(limits.end, charge), kind)

    async def usage(self, request: Request) -> JSONResponse:
        """GET /fleet/usage: by client and model, what was used since each ingress process began, of those that run.

        For callers on this machine only. Tokens of requests that are not over are not in it.

        Raises NotFoundError where nothing is counted here.
        """
        require_loopback(request)
        settings = counting_settings(request)
        values = await self.ingress_values(settings.probe_timeout_s)
        return JSONResponse({"clients": usage_rows(value for of_one in values.values() for value in of_one)})

    async def _ask_limits(self, report: LimitReport) -> LimitAnswer:
        if self._router is None:
            raise RouterLostError("There is none.")
        response = self._router.limit_clients.remote(report)
        try:
            answer: LimitAnswer = await response
        except asyncio.CancelledError:
            response.cancel()  # or Serve would keep it for a Router to come
            if (task := asyncio.current_task()) is not None and not task.cancelling():
                raise RouterLostError("The call was cancelled.") from None
            raise
        return answer


def usage_rows(values: Iterable[Value]) -> list[dict[str, Any]]:
    """Sum the counters of all ingress processes into a row for each client, by name."""
    models: dict[str, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    refusals: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    requests, tokens, refused = map(_series, (metrics.CLIENT_REQUESTS, metrics.CLIENT_TOKENS, metrics.CLIENT_REFUSALS))
    for name, pairs, value in values:
        labels = dict(pairs)
        if name == requests:
            models[labels["client"]][labels["model"]]["requests"] += int(value)
        elif name == tokens:
            models[labels["client"]][labels["model"]][f"{labels['kind']}_tokens"] += int(value)
        elif name == refused:
            refusals[labels["client"]][labels["limit"]] += int(value)
    return [
        {
            "client": client,
            "models": [{"model": model, **counts} for model, counts in sorted(models[client].items())],
            "refusals": refusals[client],
        }
        for client in sorted({*models, *refusals})
    ]


def _series(metric: Metric) -> str:
    return metric.series[0]
