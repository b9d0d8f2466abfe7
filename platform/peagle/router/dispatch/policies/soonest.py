"""The replica that is expected to finish the request first; least in flight if reports are stale."""

from peagle.router.dispatch.filters import kv_room, not_full, not_tried, ready
from peagle.router.dispatch.policy import HomeUse, Policy
from peagle.router.dispatch.scorers import decode_s, in_flight_requests, least_cost, prefill_s, wait_s

SOONEST = Policy(
    name="soonest",
    description="the replica that is expected to finish the request first",
    reason="soonest",
    homes=HomeUse.WEIGHED,
    needs_rates=True,
    filters=(not_tried, ready, not_full),
    fits=(kv_room,),
    scorers={"wait_s": wait_s, "prefill_s": prefill_s, "decode_s": decode_s},
    fallback={"in_flight_requests": in_flight_requests},
    picker=least_cost,
)
