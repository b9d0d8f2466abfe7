"""Like `soonest`, with the expected acceptance of the request, so that requests separate by acceptance.

A replica with a large K is fast for a request with high acceptance and slow for one with low acceptance. So each goes
where it is served faster, and the depth rule of each replica finds the K for the requests that it gets.
"""

from dataclasses import replace

from peagle.router.dispatch.policies.soonest import SOONEST
from peagle.router.dispatch.scorers import decode_by_acceptance_s, prefill_s, wait_s

BY_ACCEPTANCE = replace(
    SOONEST,
    name="by-acceptance",
    description="like soonest, with the acceptance of earlier requests of the same system prompt or client",
    reason="by-acceptance",
    scorers={"wait_s": wait_s, "prefill_s": prefill_s, "decode_by_acceptance_s": decode_by_acceptance_s},
    by_kind=True,
)
