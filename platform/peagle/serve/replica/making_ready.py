"""Prepares a started engine for clients: first requests, warm-up, and step timing."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from peagle.config import Deployment
from peagle.router.snapshot import StepTime
from peagle.serve.depth_settings import calibration_points
from peagle.serve.replica.first_request import answer_once
from peagle.serve.warm_progress import warming_line

# A child of Ray Serve's logger, which replicas print from level INFO.
logger = logging.getLogger("ray.serve.replica")

_TOLD_EVERY_S = 2.0
# For an engine to end its last step and take its own depths back; on a slow machine a large step takes seconds.
_RESTORED_S = 30.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """Results of preparing an engine.

    Attributes:
        warm_up_s: Seconds until every path through the engine had run.
        calibration: Step times; empty if no depths are chosen by them.
    """

    warm_up_s: float
    calibration: tuple[StepTime, ...]


async def make_ready(client: Any, deployment: Deployment, *, timed: bool) -> Readiness:
    """Warm up `client`, a newly started `AsyncLLM`, and time its steps if `timed`.

    Raises:
        ConfigError: The model embeds or scores, but its deployment does not declare it.
    """
    began_s = time.monotonic()
    await answer_once(client, deployment.pools)
    await _warm_up(client, deployment)
    warm_up_s = time.monotonic() - began_s
    return Readiness(warm_up_s, await _calibrate(client, deployment) if timed else ())


async def _warm_up(client: Any, deployment: Deployment) -> None:
    """Run everything that compiles at first use. If it fails, the first clients wait for compilation instead."""
    from peagle.engine.depth.warm_up import warm_up

    began_s, told_s = time.monotonic(), -_TOLD_EVERY_S

    def tell(done: int, of: int) -> None:
        nonlocal told_s
        if (now_s := time.monotonic()) - told_s >= _TOLD_EVERY_S:
            told_s = now_s
            logger.info("%s in %.1f s", warming_line(done, of), now_s - began_s)

    try:
        batches = await warm_up(client, deployment, tell)
    except Exception as error:
        if client.errored:
            raise
        logger.warning("The engine could not be warmed up, so the first requests compile its kernels: %r", error)
        return
    if batches:
        logger.info("Warmed up with %d batches in %.1f s", batches, time.monotonic() - began_s)


async def _calibrate(client: Any, deployment: Deployment) -> tuple[StepTime, ...]:
    """Return the engine's step times; empty if its depth is not adaptive."""
    from peagle.engine.depth.calibration import calibrate

    seconds = deployment.speculation.calibration_s
    if not deployment.adapts or not seconds:
        return ()
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(seconds + _RESTORED_S):
            points, by_request = calibration_points(deployment), deployment.shares_drafts
            times = await calibrate(client, *points, seconds, by_request=by_request)
    except Exception as error:
        if client.errored:
            raise
        logger.warning("Steps could not be timed; K will be learned while serving: %r", error)
        return ()
    logger.info("Timed steps at %d points of batch size and K in %.1f s", len(times), time.monotonic() - began_s)
    return times
