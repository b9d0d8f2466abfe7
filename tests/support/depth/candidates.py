"""An idle replica as an input of dispatch decisions, and a request for it."""

import math
from collections.abc import Mapping
from dataclasses import replace

from peagle.router.dispatch import Candidate, Dispatcher, Policy, Route
from peagle.router.snapshot import ReplicaSnapshot, RequestRates, RouteRequest

REQUEST = RouteRequest("r", prompt_tokens=1000, output_tokens=100)
# At batch size b each request gets 100 ÷ b tokens/s.
SNAPSHOT = ReplicaSnapshot(
    "a",
    taken_at_s=0.0,
    max_running_requests=4,
    prefill_tokens_per_s=500.0,
    request_tokens_per_s=RequestRates.of({batch: 100.0 / batch for batch in (1, 2, 3, 4)}),
    output_tokens_mean=400.0,
)
IDLE = Candidate("a", SNAPSHOT, True, 0, 0, 0, 0.0, math.inf, 0)


def dispatcher_of(policy: Policy, reports: Mapping[str, Mapping[str, object]]) -> Dispatcher:
    """Return a dispatcher whose replicas, by name, have reported SNAPSHOT with these changes."""
    made = Dispatcher(policy)
    made.set_members(reports)
    made.report([replace(SNAPSHOT, replica_id=name, **changes) for name, changes in reports.items()])
    return made


def routed(dispatcher: Dispatcher, request: RouteRequest = REQUEST, now_s: float = 0.0, **changes: object) -> Route:
    decision = dispatcher.dispatch(replace(request, **changes), now_s, draw=7919)
    assert isinstance(decision, Route)
    return decision
