"""Calls to every replica of a model, and the routes by which probes make them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle.api.openai_errors import unavailable

logger = logging.getLogger(__name__)

# A replica with a free slot answers well within this time; load balancer probes wait only a little longer.
_PATIENCE_S = 1.0


async def ask_replicas(handle: DeploymentHandle, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
    """Call `method` with `arguments` on every running replica; return the answers that arrived in time.

    The calls bypass the request queues, but a replica at `max_ongoing_requests` takes them only after a request ends.
    """
    replies = await _replies(handle, method, timeout_s, *arguments)
    return [reply for reply in replies if not isinstance(reply, BaseException)]


async def count_well(handle: DeploymentHandle, timeout_s: float) -> int:
    """Count the running replicas that are healthy, including their engines.

    A replica that does not answer counts as full: Serve has its own health check, and removes replicas that fail it.
    """
    replies = await _replies(handle, "check_ready", min(timeout_s, _PATIENCE_S))
    return sum(not isinstance(reply, BaseException) or isinstance(reply, TimeoutError) for reply in replies)


async def _replies(handle: DeploymentHandle, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
    """Return each running replica's answer within `timeout_s`, or the exception raised instead."""
    until_s = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(until_s):
            # `results_async` would discard all answers if one replica is slow.
            calls = await handle.broadcast(method, *arguments)._fetch_replica_results_async()
    except Exception as error:
        logger.warning("No replica of %s could be called: %s", handle.deployment_name, error)
        return []

    async def answer_to(call: Any) -> Any:
        async with asyncio.timeout_at(until_s):
            return await call.get_async()

    answers = await asyncio.gather(*map(answer_to, calls), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, Exception):
            logger.warning("A replica of %s did not answer %s: %r", handle.deployment_name, method, answer)
    return answers


async def ask_models(
    handles: Mapping[str, DeploymentHandle], method: str, timeout_s: float, *arguments: Any
) -> dict[str, list[Any]]:
    """Call `ask_replicas` for all models concurrently; return the answers by model."""
    asked = (ask_replicas(handle, method, timeout_s, *arguments) for handle in handles.values())
    answers = await asyncio.gather(*asked)
    return dict(zip(handles, answers, strict=True))


async def deployment_states() -> dict[tuple[str, str], Counter[str]]:
    """Return the number of replicas in each state, by application and deployment, from Serve's controller.

    States are in lower case. `serve.status()` returns the same, but takes twice as long to validate it.
    """
    client = _get_global_client()
    details = await asyncio.to_thread(client.get_serve_details)
    return {
        (app, deployment): Counter(replica["state"].lower() for replica in detail["replicas"])
        for app, application in details["applications"].items()
        for deployment, detail in application["deployments"].items()
    }


async def own_handle() -> DeploymentHandle:
    """Return a handle to all replicas of this process's own deployment."""
    context = serve.get_replica_context()
    # In a thread: it waits for Serve's controller, which may be down.
    return await asyncio.to_thread(serve.get_deployment_handle, context.deployment, context.app_name)


class HealthRoutes:
    """Handlers of health probes: whether this ingress is alive, and whether every model can answer."""

    _default_serve_handles: Mapping[str, DeploymentHandle]

    async def health(self, request: Request) -> JSONResponse:
        """GET /health and /health/ready: 200 if every model has a replica with a healthy engine, else 503."""
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
        """GET /health/live: 200 as long as this process answers, whether or not its models can."""
        return JSONResponse({"status": "ok"})
