"""What a replica's status says of its depths: who chose them, and what drafting has yielded."""

from typing import Any

from peagle.router.snapshot import StepStats
from peagle.serve.reporting import PlanStatus


def plan_status(plan: PlanStatus) -> dict[str, Any]:
    """The fields of a replica's status that say who chose its depths."""
    return {"depth_mode": plan.mode, "depth_reason": plan.reason, "plan_age_s": plan.age_s}


def depth_status(stats: StepStats | None) -> dict[str, Any]:
    """The depth fields of a replica's status; null or empty where nothing is known.

    By position, accepted over drafted is the share of drafts that were right up to there; a mean over all drafts would
    count drafts that never went so deep as wrong.
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
