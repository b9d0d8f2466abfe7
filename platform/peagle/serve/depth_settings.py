"""The depth rule's settings for a deployment."""

from peagle.config import Deployment
from peagle.engine.arguments import engine_arguments
from peagle.engine.cost_prior import cost_prior
from peagle.router.depth import AcceptancePrior, DepthSettings, batch_ranges


def calibration_points(deployment: Deployment) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the batch sizes and depths at which to time steps: all that the rule distinguishes."""
    settings = depth_settings(deployment)
    return tuple(batches.at for batches in batch_ranges(settings.batch_max)), settings.rungs


def depth_settings(deployment: Deployment) -> DepthSettings:
    """Return the rule's settings; its prior is only a starting point, replaced by measurements."""
    speculation = deployment.speculation
    max_num_seqs = engine_arguments(deployment)["max_num_seqs"]
    return DepthSettings(
        depth_max=speculation.depth_max,
        depth_static=speculation.depth_static,
        batch_max=max_num_seqs,
        cost=cost_prior(deployment).cost,
        acceptance=AcceptancePrior.geometric(speculation.depth_max),
        inter_token_s_max=speculation.inter_token_s_max,
        by_request=deployment.shares_drafts,
        drafter_skipped_at_zero=deployment.drafter is not None and deployment.drafter.method == "p-eagle",
    )
