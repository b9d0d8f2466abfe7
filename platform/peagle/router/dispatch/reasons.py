"""Every reason that a decision may be counted by: the values of a metric's label."""

from peagle.router.dispatch.decision import ShedReason
from peagle.router.dispatch.policies import POLICIES

DECISION_REASONS = frozenset(
    {reason for policy in POLICIES.values() for reason in policy.reasons}
    | {f"wait-{reason}" for reason in ShedReason}
    | {"failed"}
)
"""Of every policy in the table; `wait-` where no replica could take the request; `failed` where none was decided."""
