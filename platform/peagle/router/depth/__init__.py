"""Draft depth K for each batch size: acceptance estimate, step-cost model, and the rule that turns both into a plan.

The rule takes one report of one replica and returns its plan:

    state = start(settings, fleet_prior(others, settings))
    state, plan = step(state, report, settings, now_s)

`ModelDepths` does this for all replicas of a model.
"""

from peagle.router.depth.ladder import BatchRange, batch_ranges, depth_ladder
from peagle.router.depth.model_depths import ModelDepths
from peagle.router.depth.model_size import target_size
from peagle.router.depth.plan import Cause, DepthChange, DepthInputs, DepthPlan, Mode
from peagle.router.depth.priors import (
    DEVICES,
    EMBEDDED_CPU,
    TARGETS,
    CostPrior,
    Device,
    TargetSize,
    cpu_prior,
    known_target,
    roofline_prior,
)
from peagle.router.depth.rule.state import DepthState, FleetPrior, fleet_prior, start
from peagle.router.depth.rule.tuner import step
from peagle.router.depth.settings import AcceptancePrior, DepthLimits, DepthSettings, StandingLimits
from peagle.router.depth.view import DepthView, RangeView, draft_plan, request_tokens_per_s, view

__all__ = [
    "DEVICES",
    "EMBEDDED_CPU",
    "TARGETS",
    "AcceptancePrior",
    "BatchRange",
    "Cause",
    "CostPrior",
    "DepthChange",
    "DepthInputs",
    "DepthLimits",
    "DepthPlan",
    "DepthSettings",
    "DepthState",
    "DepthView",
    "Device",
    "FleetPrior",
    "Mode",
    "ModelDepths",
    "RangeView",
    "StandingLimits",
    "TargetSize",
    "batch_ranges",
    "cpu_prior",
    "depth_ladder",
    "draft_plan",
    "fleet_prior",
    "known_target",
    "request_tokens_per_s",
    "roofline_prior",
    "start",
    "step",
    "target_size",
    "view",
]
