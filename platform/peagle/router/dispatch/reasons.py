"""Every reason by which a decision may be counted: the values of a metric's label."""

from peagle.router.dispatch.decision import ShedReason
from peagle.router.dispatch.policies import POLICIES

FAILED = "failed"
"""No decision could be made, and the request went to any replica."""
TURN = "turn"
"""The request got a place, found for another client, because it was its turn."""


def of_waiting(reason: ShedReason) -> str:
    """Return the reason for a request that has to wait because no replica has a place."""
    return f"wait-{reason}"


DECISION_REASONS = frozenset(
    {reason for policy in POLICIES.values() for reason in policy.reasons}
    | {of_waiting(reason) for reason in ShedReason}
    | {FAILED, TURN}
)
"""Reasons of every policy in the table, of waiting, of turns, and of failed decisions."""
