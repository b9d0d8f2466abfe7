"""The Router deployment: receives replica reports, answers with depth plans, and passes snapshots to dispatchers.

It also accounts for clients' limits, for all ingress processes.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ray import serve

from peagle.api.loopback import answer_on_loopback
from peagle.config import Deployment
from peagle.engine.cost_prior import FoundPrior, cost_prior
from peagle.errors import ConfigError, NotFoundError
from peagle.router.depth import DepthLimits, DepthPlan, ModelDepths, StandingLimits
from peagle.router.dispatch import Board, DispatcherReport, EndedDrafts, FleetNews
from peagle.router.fairness.limit_book import LimitAnswer, LimitBook, LimitReport
from peagle.router.snapshot import ReplicaSnapshot, StepReport
from peagle.serve.depth_settings import depth_settings

# Below Ray Serve's own, which a replica prints from the level of information on.
logger = logging.getLogger("ray.serve.router")

NAME = "Router"


class Router:
    """Keeps every replica's last report. Losing it loses no request.

    Replicas keep their plans, and dispatchers use their own in-flight requests until it is back and has heard from all.
    """

    def __init__(self, deployments: Mapping[str, Deployment]) -> None:
        answer_on_loopback()
        self._boards = {name: Board() for name in deployments}
        self._limits = LimitBook()
        adaptive = {name: each for name, each in deployments.items() if each.adapts}
        self._models = {name: ModelDepths(depth_settings(each)) for name, each in adaptive.items()}
        self._priors = {name: cost_prior(each) for name, each in adaptive.items()}
        for name, prior in self._priors.items():
            if prior.stand_ins:
                logger.warning("%s", guess_told(name, prior, adaptive[name].speculation.calibration_s))

    async def report(
        self,
        model: str,
        snapshot: ReplicaSnapshot,
        steps: StepReport | None = None,
        standing: StandingLimits | None = None,
        ended: tuple[EndedDrafts, ...] = (),
    ) -> DepthPlan | None:
        """Receive one replica's report, with its engine's steps if its depth is adaptive; then return its plan.

        `ended` holds the draft counts of requests that have ended since its last report.
        """
        now_s = time.monotonic()
        plan = None
        if steps is not None:
            depths, replica_id = self._models[model], snapshot.replica_id
            plan = depths.report(replica_id, steps, now_s, standing)
            # The plan may just have changed what the replica's own past steps say of its speed.
            rates = depths.request_tokens_per_s(replica_id, now_s)
            if rates.batch_sizes:
                snapshot = replace(snapshot, request_tokens_per_s=rates, drafts=depths.draft_plan(replica_id))
        self._boards[model].report(snapshot, now_s, ended)
        return plan

    async def news(self, model: str, dispatcher: DispatcherReport) -> FleetNews:
        """Receive one dispatcher's report; return the last reports of all replicas of its model."""
        return self._boards[model].news(dispatcher, time.monotonic())

    async def limit_clients(self, report: LimitReport) -> LimitAnswer:
        """Receive one ingress process's report of its clients' requests; return which requests are admitted."""
        return self._limits.exchange(report, time.monotonic())

    async def estimates(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return the estimates for each replica with adaptive depth, by model and replica, as fields of its metrics."""
        now_s = time.monotonic()
        return {model: estimate_rows(depths, self._priors[model], now_s) for model, depths in self._models.items()}

    async def depth(self, replica_id: str) -> dict[str, Any]:
        """Return the inputs of a replica's plan, as plain values; `at_s` of its log becomes `age_s`.

        Raises NotFoundError if no replica of this id reports.
        """
        model, depths = self._find(replica_id)
        now_s = time.monotonic()
        seen = depths.view(replica_id, now_s)
        assert seen is not None, "a replica that is found has reported"
        shown = asdict(seen)
        if shown["plan"]:
            del shown["plan"]["standing"]  # as `limits` below
        for change in [*shown["log"], *(shown["plan"]["changes"] if shown["plan"] else ())]:
            change["age_s"] = now_s - change.pop("at_s")
        return {"model": model, "replica": replica_id, "limits": asdict(depths.limits_of(replica_id)), **shown}

    async def limit(self, replica_id: str, limits: DepthLimits | None) -> None:
        """Set or remove an operator's limits for a replica.

        Raises:
            NotFoundError: No replica of this id reports.
            ConfigError: A depth is deeper than the model's own.
        """
        _, depths = self._find(replica_id)
        depths.limit(_checked(limits, depths), replica_id)

    async def limit_model(self, model: str, limits: DepthLimits | None) -> None:
        """Set or remove an operator's limits for all replicas of a model that have no limits of their own.

        Raises:
            NotFoundError: No such model adapts its depth.
            ConfigError: A depth is deeper than the model's own.
        """
        depths = self._models.get(model)
        if depths is None:
            raise NotFoundError(f"No model {model} adapts its depth: speculation.adaptive is what makes one do so.")
        depths.limit(_checked(limits, depths))

    def _find(self, replica_id: str) -> tuple[str, ModelDepths]:
        for model, depths in self._models.items():
            if replica_id in depths.replicas:
                return model, depths
        raise NotFoundError(
            f"No replica {replica_id} reports here: `GET /fleet` lists replicas; those whose deployment file has "
            "speculation.adaptive do, twice a second."
        )


def estimate_rows(depths: ModelDepths, prior: FoundPrior, now_s: float) -> dict[str, dict[str, Any]]:
    """Return the metrics fields that the Router knows, by replica; fewer before its first step."""
    known = depths.estimates(now_s)
    return {
        replica_id: {"prior_assumed": prior.assumed, **(asdict(known[replica_id]) if replica_id in known else {})}
        for replica_id in depths.replicas
    }


def guess_told(model: str, prior: FoundPrior, calibration_s: float) -> str:
    """Describe what is unknown about a model's step times, what is assumed instead, and the consequence."""
    lacks = " ".join(str(each) for each in prior.stand_ins.values())
    then = (
        f"Each replica times its steps for up to {calibration_s:g} s before its first request"
        if calibration_s
        else "With speculation.calibration_s 0 nothing is timed before the first request, and K may be wrong at first"
    )
    return f"{model}: the first guess of its step times is a stand-in. {lacks} {then}."


def _checked(limits: DepthLimits | None, depths: ModelDepths) -> DepthLimits | None:
    """Return `limits`. Raises ConfigError for a depth that the model's drafter does not support."""
    deepest = depths.settings.depth_max
    for name in ("pin", "floor", "ceiling") if limits is not None else ():
        value = getattr(limits, name)
        if value is not None and not 0 <= value <= deepest:
            raise ConfigError(name, value, "the drafter does not draft that", f"Name a K from 0 to {deepest}.")
    if limits is not None and limits.ceiling is not None and limits.floor > limits.ceiling:
        problem = f"it is above the ceiling of {limits.ceiling}"
        raise ConfigError("floor", limits.floor, problem, "Lower the floor or raise the ceiling.")
    return limits


def bind_router(deployments: Mapping[str, Deployment]) -> serve.Application:
    """Return the bound Router of these deployments, for an application."""
    deployment = serve.deployment(
        Router, name=NAME, num_replicas=1, max_ongoing_requests=4096, ray_actor_options={"num_cpus": 0}
    )
    return deployment.bind(deployments)
