"""Every reason that a decision may be counted by: the values of a metric's label."""

from peagle.router.dispatch.decision import ShedReason
from peagle.router.dispatch.policies import POLICIES

FAILED = "failed"
"""Where no decision could be made, and the request went to any replica."""
TURN = "turn"
"""Where it was a request's turn to get a place that was found for another client's."""


def of_waiting(reason: ShedReason) -> str:
    """What a request is counted by for which no replica had a place at once."""
    return f"wait-{reason}"


DECISION_REASONS = frozenset(
    {reason for policy in POLICIES.values() for reason in policy.reasons}
    | {of_waiting(reason) for reason in ShedReason}
    | {FAILED, TURN}
)
"""Of every policy in the table, of waiting, of turns, and of no decision."""
