"""As `soonest`, by what is known of the request's own acceptance: requests that differ in it come apart by themselves.

A replica that drafts deep is quick for a request whose drafts are right, and slow for one whose are not. So each goes
where it is served better, and the depth rule of each replica then finds the K of its own kind.
"""

from dataclasses import replace

from peagle.router.dispatch.policies.soonest import SOONEST
from peagle.router.dispatch.scorers import decode_by_acceptance_s, prefill_s, wait_s

BY_ACCEPTANCE = replace(
    SOONEST,
    name="by-acceptance",
    description="as soonest, by how often drafts were right for earlier requests of its system prompt or client",
    reason="by-acceptance",
    scorers={"wait_s": wait_s, "prefill_s": prefill_s, "decode_by_acceptance_s": decode_by_acceptance_s},
    by_kind=True,
)
