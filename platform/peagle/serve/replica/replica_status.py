"""Depth fields of a replica's status: how depths were chosen, and the results of drafting."""

from typing import Any

from peagle.router.snapshot import StepStats
from peagle.serve.reporting import PlanStatus


def plan_status(plan: PlanStatus) -> dict[str, Any]:
    """Return the status fields that describe how depths were chosen."""
    return {"depth_mode": plan.mode, "depth_reason": plan.reason, "plan_age_s": plan.age_s}


def depth_status(stats: StepStats | None) -> dict[str, Any]:
    """Return the depth fields of a replica's status; null or empty if unknown.

    At each position, accepted over drafted is the share of drafts accepted up to it. A mean over all drafts would count
    shallower drafts as rejected there.
    """
    return {
        "depth_version": stats.table.version if stats else None,
        "depths": list(stats.table.depths) if stats else [],
        "drafts": stats.drafts if stats else None,
        "drafting_steps": stats.drafting_steps if stats else None,
        "rows_verified": stats.rows.verified if stats else None,
        "rows_drafted": stats.rows.drafted if stats else None,
        "rows_unfitted": stats.rows.unfitted if stats else None,
        "requested": stats.requested if stats else None,
        "drafted": stats.drafted if stats else None,
        "accepted": stats.accepted if stats else None,
        "drafted_by_position": list(stats.drafted_by_position) if stats else [],
        "accepted_by_position": list(stats.accepted_by_position) if stats else [],
        "depth_effective": stats.depth_effective if stats else None,
        "acceptance_length": stats.acceptance_length if stats else None,
    }
