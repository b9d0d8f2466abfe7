"""The replica with the fewest requests, then the emptiest KV cache; prefixes have no home."""

from peagle.router.dispatch.filters import kv_room, not_full, not_tried, ready
from peagle.router.dispatch.policy import Candidate, HomeUse, Policy
from peagle.router.dispatch.scorers import in_flight_requests, least_cost
from peagle.router.snapshot import RouteRequest

# A full cache costs less than one request, so it only decides between equal counts.
_FULL_CACHE_REQUESTS = 0.5


def load_requests(request: RouteRequest, candidate: Candidate) -> float:
    """Return the requests at the replica: reported, and sent since."""
    return candidate.requests


def kv_usage_requests(request: RouteRequest, candidate: Candidate) -> float:
    """Return the KV cache usage as a fraction of one request."""
    return 0.0 if candidate.snapshot is None else _FULL_CACHE_REQUESTS * candidate.snapshot.kv_usage_ratio


LEAST_LOADED = Policy(
    name="least-loaded",
    description="the replica with the fewest requests; among equals, the one with the most room in its KV cache",
    reason="least-loaded",
    homes=HomeUse.NONE,
    needs_rates=False,
    filters=(not_tried, ready, not_full),
    fits=(kv_room,),
    scorers={"load_requests": load_requests, "kv_usage_requests": kv_usage_requests},
    fallback={"in_flight_requests": in_flight_requests},
    picker=least_cost,
)
