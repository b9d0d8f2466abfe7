"""Routes for operators on the server's machine: a replica's draft depth and its reasons, pins and bounds."""

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle.api.body import read_json, validate
from peagle.api.loopback import require_loopback
from peagle.api.openai_errors import cause_of, is_lost_replica
from peagle.errors import NotFoundError, PeagleError, RouterLostError
from peagle.router.depth import DepthLimits


class DepthRequest(BaseModel):
    """An operator's limits on a replica: exactly this K (`pin`), bounds, or an unchanged table (`paused`)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pin: int | None = Field(default=None, ge=0)
    floor: int = Field(default=0, ge=0)
    ceiling: int | None = Field(default=None, ge=0)
    paused: bool = False


class DepthRoutes:
    """Handlers of `/fleet/replicas/{replica}/depth` and `/fleet/models/{model}/depth`, for an ingress with a Router.

    Limits on a replica take precedence over limits on its model.
    """

    _router: DeploymentHandle | None

    async def depth(self, request: Request, replica: str) -> JSONResponse:
        """GET: the replica's table, estimate, predicted and measured goodput, and decision log."""
        require_loopback(request)
        return JSONResponse(await self._ask_router(request, "depth", replica))

    async def limit_depth(self, request: Request, replica: str) -> JSONResponse:
        """PUT: pin, bound or pause the replica's depth."""
        return await self._limit(request, "limit", replica)

    async def unlimit_depth(self, request: Request, replica: str) -> JSONResponse:
        """DELETE: return control of the replica's depth to the Router."""
        return await self._unlimit(request, "limit", replica)

    async def limit_model_depth(self, request: Request, model: str) -> JSONResponse:
        """PUT: pin, bound or pause the depth of every current and future replica of the model."""
        return await self._limit(request, "limit_model", model)

    async def unlimit_model_depth(self, request: Request, model: str) -> JSONResponse:
        """DELETE: return control of the depth of the model's replicas to the Router."""
        return await self._unlimit(request, "limit_model", model)

    async def _limit(self, request: Request, method: str, name: str) -> JSONResponse:
        require_loopback(request)
        wanted = validate(DepthRequest, await read_json(request, request.app.state.settings))
        await self._ask_router(
            request, method, name, DepthLimits(wanted.floor, wanted.ceiling, wanted.pin, wanted.paused)
        )
        return JSONResponse(wanted.model_dump())

    async def _unlimit(self, request: Request, method: str, name: str) -> JSONResponse:
        require_loopback(request)
        await self._ask_router(request, method, name, None)
        return JSONResponse(DepthRequest().model_dump())

    async def _ask_router(self, request: Request, method: str, *arguments: Any) -> Any:
        if self._router is None:
            raise NotFoundError("No model here has adaptive depth; set speculation.adaptive in its deployment file.")
        try:
            async with asyncio.timeout(request.app.state.settings.probe_timeout_s):
                return await getattr(self._router, method).remote(*arguments)
        except Exception as error:
            if isinstance(error, TimeoutError | DeploymentUnavailableError) or is_lost_replica(error):
                raise RouterLostError("The Router does not answer; replicas keep their last plans.") from None
            cause = cause_of(error)
            if isinstance(cause, PeagleError):
                raise cause from None
            raise
