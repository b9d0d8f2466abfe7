"""What probes ask: whether this process lives, and whether every model can be asked."""

import asyncio
from collections.abc import Mapping

from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle.api.fleet_calls import count_well
from peagle.api.openai_errors import unavailable


class HealthRoutes:
    """A part of the ingress."""

    _default_serve_handles: Mapping[str, DeploymentHandle]

    async def health(self, request: Request) -> JSONResponse:
        """GET /health and /health/ready: 200 when every model has a replica whose engine is well, else 503."""
        handles, timeout_s = self._default_serve_handles, request.app.state.settings.probe_timeout_s
        counts = await asyncio.gather(*(count_well(handle, timeout_s) for handle in handles.values()))
        replicas = dict(zip(handles, counts, strict=True))
        missing = [model for model, well in replicas.items() if not well]
        if missing:
            return unavailable(f"No replica answers for: {', '.join(missing)}.").response()
        return JSONResponse({"status": "ok", "replicas": replicas})

    async def ready(self, request: Request) -> JSONResponse:
        """GET /health/ready"""
        return await self.health(request)

    async def live(self) -> JSONResponse:
        """GET /health/live: 200 as long as this process answers, whether or not a model can."""
        return JSONResponse({"status": "ok"})
