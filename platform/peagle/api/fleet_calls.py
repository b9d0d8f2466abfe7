"""Questions that every replica of a model is asked, and the routes by which probes ask them."""

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

# Within which a replica with room for a question has long answered; probes of a load balancer wait little longer.
_PATIENCE_S = 1.0


async def ask_replicas(handle: DeploymentHandle, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
    """Call `method` with `arguments` on every running replica; return the answers that came in time.

    The calls pass by the queues for a replica, but one that holds `max_ongoing_requests` takes them when one has ended.
    """
    replies = await _replies(handle, method, timeout_s, *arguments)
    return [reply for reply in replies if not isinstance(reply, BaseException)]


async def count_well(handle: DeploymentHandle, timeout_s: float) -> int:
    """How many running replicas are well, their engines included.

    One that is silent is taken to be full: Serve asks each by a way of its own, and lists none that has failed.
    """
    replies = await _replies(handle, "check_ready", min(timeout_s, _PATIENCE_S))
    return sum(not isinstance(reply, BaseException) or isinstance(reply, TimeoutError) for reply in replies)


async def _replies(handle: DeploymentHandle, method: str, timeout_s: float, *arguments: Any) -> list[Any]:
    """What each running replica answers within `timeout_s`, or the exception that came instead."""
    until_s = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(until_s):
            # `results_async` would give up every answer when one replica is slow.
            calls = await handle.broadcast(method, *arguments)._fetch_replica_results_async()
    except Exception as error:
        logger.warning("No replica of %s could be asked: %s", handle.deployment_name, error)
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
    """`ask_replicas` for every model at once; the answers by model."""
    asked = (ask_replicas(handle, method, timeout_s, *arguments) for handle in handles.values())
    answers = await asyncio.gather(*asked)
    return dict(zip(handles, answers, strict=True))


async def deployment_states() -> dict[tuple[str, str], Counter[str]]:
    """How many replicas are in which state, as Serve's controller sees it; by application and deployment.

    States are in lower case. `serve.status()` says the same, but takes twice as long to check what the controller sent.
    """
    client = _get_global_client()
    details = await asyncio.to_thread(client.get_serve_details)
    return {
        (app, deployment): Counter(replica["state"].lower() for replica in detail["replicas"])
        for app, application in details["applications"].items()
        for deployment, detail in application["deployments"].items()
    }


async def own_handle() -> DeploymentHandle:
    """A handle to all replicas of the deployment that this process is one of."""
    context = serve.get_replica_context()
    # In a thread: it waits for Serve's controller, which may be away.
    return await asyncio.to_thread(serve.get_deployment_handle, context.deployment, context.app_name)


class HealthRoutes:
    """What probes ask: whether the ingress lives, whose part this is, and whether every model can be asked."""

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
