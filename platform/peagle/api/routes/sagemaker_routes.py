"""The two routes that Amazon SageMaker requires of a container."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import Response

from peagle.api.body import read_body, read_request
from peagle.api.fleet_calls import count_well
from peagle.errors import RequestError

# SageMaker waits 2 s for the answer to its health check.
PING_S = 1.5

# Ingress handler for a body, by the field that the body has.
_HANDLERS: Mapping[str, str] = {
    "messages": "chat",
    "prompt": "completions",
    "input": "embeddings",
    "query": "rerank",
    **dict.fromkeys(("queries", "text_1", "data_1"), "score"),
}


class SageMakerRoutes:
    """Handlers of `/ping` and `/invocations`, for an ingress that answers the other routes."""

    _default_serve_handles: Mapping[str, DeploymentHandle]

    async def ping(self, request: Request) -> Response:
        """GET: 200 if every model has a replica with a healthy engine, else 503; the body is empty."""
        timeout_s = min(request.app.state.settings.probe_timeout_s, PING_S)
        handles = self._default_serve_handles.values()
        counts = await asyncio.gather(*(count_well(handle, timeout_s) for handle in handles))
        return Response(status_code=200 if all(counts) else 503)

    async def invocations(self, request: Request) -> Response:
        """POST: forwarded to the route that matches the body's field."""
        settings = request.app.state.settings
        # Read once here, and parsed again by the target route.
        request.state.body = await read_body(request, settings)
        answer = await read_request(request, settings, self._route)
        return await answer(request)

    def _route(self, data: dict[str, Any]) -> Callable[[Request], Awaitable[Response]]:
        name = next((_HANDLERS[field] for field in _HANDLERS if field in data), None)
        if name is None:
            raise RequestError(
                "Send messages for a chat, prompt for a completion, input for embeddings, query to rerank, or queries "
                "to score.",
                code="missing_required_parameter",
            )
        answer: Callable[[Request], Awaitable[Response]] = getattr(self, name)
        return answer
