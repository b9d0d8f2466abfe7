"""A replica around a timed engine: it serves requests and reports to the Router like a model's server."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from peagle.serve.reporting import TIMEOUT_S, keep_reporting
from peagle.serve.routing.route_request import route_request
from peagle.simulator.timed_engine import TimedEngine, TimedModel


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """The relevant fields of a completion request, and the length of the shared part of its prompt."""

    prompt: list[int]
    max_tokens: int
    shared_tokens: int = 0


class TimedServer:
    """A replica of `model`: rank r runs at `speeds[r]`, further ranks at 1."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it, on the loop that the requests run on
        self, model: str, timed: TimedModel, speeds: Sequence[float] = (), router: DeploymentHandle | None = None
    ) -> None:
        context = serve.get_replica_context()
        rank = context.rank.rank
        self._id: str = context.replica_id.unique_id
        self._model, self._router = model, router
        self._engine = TimedEngine(timed, speeds[rank] if rank < len(speeds) else 1.0)
        if router is not None:
            self._reporting = asyncio.create_task(keep_reporting(self._report), name="reports")

    async def completions(self, body: TimedRequest, info: Any = None) -> AsyncGenerator[dict[str, Any]]:
        """Yield the replica and the tokens so far, at the first token and at the last."""
        request = replace(route_request("", body), prefix_tokens=body.shared_tokens)
        async for tokens in self._engine.generate(request, body.max_tokens):
            yield {"replica": self._id, "tokens": tokens}

    async def _report(self) -> None:
        assert self._router is not None
        async with asyncio.timeout(TIMEOUT_S):
            await self._router.report.remote(self._model, self._engine.snapshot(self._id))
