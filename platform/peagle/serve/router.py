"""The Router deployment: takes every replica's report and answers with its depth plan."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ray import serve

from peagle.config import Deployment
from peagle.errors import ConfigError, NotFoundError
from peagle.router.depth import DepthLimits, DepthPlan, ModelDepths
from peagle.router.snapshot import StepReport
from peagle.serve.depth_settings import depth_settings


class Router:
    """Keeps the depth rule's state for every model. Losing it loses no request: replicas keep the plans they have."""

    def __init__(self, deployments: Mapping[str, Deployment]) -> None:
        self._models = {name: ModelDepths(depth_settings(each)) for name, each in deployments.items()}

    async def report(self, model: str, replica_id: str, report: StepReport) -> DepthPlan:
        """One replica's report; returns its plan."""
        return self._models[model].report(replica_id, report, time.monotonic())

    async def depth(self, replica_id: str) -> dict[str, Any]:
        """What lies behind a replica's plan, as plain values; `at_s` of its log becomes `age_s`.

        Raises:
            NotFoundError: No replica of this id reports.
        """
        model, depths = self._find(replica_id)
        now_s = time.monotonic()
        seen = depths.view(replica_id, now_s)
        assert seen is not None, "a replica that is found has reported"
        shown = asdict(seen)
        for change in [*shown["log"], *(shown["plan"]["changes"] if shown["plan"] else ())]:
            change["age_s"] = now_s - change.pop("at_s")
        return {"model": model, "replica": replica_id, "limits": asdict(depths.limits_of(replica_id)), **shown}

    async def limit(self, replica_id: str, limits: DepthLimits | None) -> None:
        """Set or take back what an operator decides for a replica.

        Raises:
            NotFoundError: No replica of this id reports.
            ConfigError: A depth is deeper than the model's own.
        """
        _, depths = self._find(replica_id)
        if limits is not None:
            deepest = depths.settings.depth_max
            for name in ("pin", "floor", "ceiling"):
                value = getattr(limits, name)
                if value is not None and not 0 <= value <= deepest:
                    raise ConfigError(name, value, "the drafter does not draft that", f"Name a K from 0 to {deepest}.")
        depths.limit(limits, replica_id)

    def _find(self, replica_id: str) -> tuple[str, ModelDepths]:
        for model, depths in self._models.items():
            if replica_id in depths.replicas:
                return model, depths
        raise NotFoundError(f"No replica {replica_id} reports its depth.")


def bind_router(deployments: Mapping[str, Deployment]) -> serve.Application:
    """The Router of these deployments, to be bound into an application."""
    deployment = serve.deployment(
        Router, name="Router", num_replicas=1, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0}
    )
    return deployment.bind(deployments)
