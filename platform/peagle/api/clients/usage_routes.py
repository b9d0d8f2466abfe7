"""Charges requests to clients, for an ingress; and the route that reports usage to operators."""

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
from peagle.api.clients.request_charge import Charge, Usage, charge_of
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
    """Charges requests to clients; handler of `/fleet/usage`."""

    _router: DeploymentHandle | None
    _deployments: dict[str, Deployment]

    async def admit(self, request: Request, body: Any, model: str, generates: bool) -> Charge | None:
        """Charge a request to the client of its API key; return None if no keys are required.

        Raises:
            LimitError: The request is over a limit of the client.
            OverloadedError: The client already holds its share of the model's places while others wait.
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
                charge.used = Usage()  # so that its expected tokens are returned
                settings: ApiSettings = request.app.state.settings
                problem = f"The API key {client.name} has its full share of open requests while other clients wait."
                raise OverloadedError(problem, ledger.waits.of(model, settings.retry_after_s))
        return charge

    def _places(self, model: str) -> int | None:
        """Return how many requests this ingress process may have open for the model; None if unlimited."""
        if (deployment := self._deployments.get(model)) is None or deployment.routing.max_queued_requests == -1:
            return None
        routing = deployment.routing
        return routing.max_ongoing_requests + routing.max_queued_requests // deployment.replicas.max

    def metered(
        self, request: Request, replies: AsyncGenerator[Any, None], body: Any, charge: Charge | None, kind: StreamKind
    ) -> AsyncGenerator[Any, None]:
        """Return a replica's replies, and update the charge with the usage in them."""
        if charge is None:
            return replies
        limits = request.app.state.ledger.limits
        return metered(replies, body, charge, partial(limits.begin, charge), partial(limits.end, charge), kind)

    async def usage(self, request: Request) -> JSONResponse:
        """GET /fleet/usage: usage by client and model since each running ingress process started.

        For callers on this machine only. Tokens of requests in progress are not included.

        Raises NotFoundError if metrics are off.
        """
        require_loopback(request)
        settings = counting_settings(request)
        values = await self.ingress_values(settings.probe_timeout_s)
        return JSONResponse({"clients": usage_rows(value for of_one in values.values() for value in of_one)})

    async def _ask_limits(self, report: LimitReport) -> LimitAnswer:
        if self._router is None:
            raise RouterLostError("No Router is running.")
        response = self._router.limit_clients.remote(report)
        try:
            answer: LimitAnswer = await response
        except asyncio.CancelledError:
            response.cancel()  # otherwise Serve would keep it for the next Router
            if (task := asyncio.current_task()) is not None and not task.cancelling():
                raise RouterLostError("The call was cancelled.") from None
            raise
        return answer


def usage_rows(values: Iterable[Value]) -> list[dict[str, Any]]:
    """Sum the counters of all ingress processes into one row per client, sorted by name."""
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
