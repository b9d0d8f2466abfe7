"""Routes for operators on the server's machine: why a replica drafts as deep as it does, and what bounds or pins it."""

import asyncio
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray.exceptions import RayTaskError
from ray.serve.handle import DeploymentHandle
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle.api.body import read_json, validate
from peagle.api.loopback import require_loopback
from peagle.errors import NotFoundError, PeagleError
from peagle.router.depth import DepthLimits


class DepthRequest(BaseModel):
    """What an operator decides for a replica: exactly this K (`pin`), bounds, or that its table stays (`paused`)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    pin: int | None = Field(default=None, ge=0)
    floor: int = Field(default=0, ge=0)
    ceiling: int | None = Field(default=None, ge=0)
    paused: bool = False


class DepthRoutes:
    """Handlers of `/fleet/replicas/{replica}/depth`, for an ingress that has a Router."""

    _router: DeploymentHandle | None

    async def depth(self, request: Request, replica: str) -> JSONResponse:
        """GET: the replica's table, estimate, predicted and measured goodput, and decision log."""
        require_loopback(request)
        return JSONResponse(await self._ask_router(request, "depth", replica))

    async def limit_depth(self, request: Request, replica: str) -> JSONResponse:
        """PUT: pin, bound or pause the replica's depth."""
        require_loopback(request)
        wanted = validate(DepthRequest, await read_json(request, request.app.state.settings))
        limits = DepthLimits(wanted.floor, wanted.ceiling, wanted.pin, wanted.paused)
        await self._ask_router(request, "limit", replica, limits)
        return JSONResponse(wanted.model_dump())

    async def unlimit_depth(self, request: Request, replica: str) -> JSONResponse:
        """DELETE: leave the replica's depth to the Router again."""
        require_loopback(request)
        await self._ask_router(request, "limit", replica, None)
        return JSONResponse(DepthRequest().model_dump())

    async def _ask_router(self, request: Request, method: str, *arguments: Any) -> Any:
        if self._router is None:
            raise NotFoundError("No model here adapts its depth; set speculation.adaptive in its deployment file.")
        try:
            async with asyncio.timeout(request.app.state.settings.probe_timeout_s):
                return await getattr(self._router, method).remote(*arguments)
        except TimeoutError:
            raise HTTPException(503, "The Router does not answer; replicas keep their last plans.") from None
        except RayTaskError as error:
            if isinstance(error.cause, PeagleError):
                raise error.cause from None
            raise
