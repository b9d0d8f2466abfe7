"""Costs of a request at a replica, in the unit that each name ends in, and the pickers: shared by policies."""

import math
from collections.abc import Sequence

from peagle.router.dispatch.policy import Candidate, Weighed
from peagle.router.snapshot import RouteRequest


def wait_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the seconds until prefill starts: behind queued prompts, or behind those who wait for a place."""
    seen = candidate.snapshot
    if seen is None or not seen.has_rates:
        return math.inf
    prefill_s = _seconds(candidate.queued_prompt_tokens, seen.prefill_tokens_per_s)
    ahead = candidate.requests + 1 - seen.max_running_requests
    if ahead <= 0:
        return prefill_s
    batch = seen.max_running_requests
    place_s = _seconds(ahead * seen.output_tokens_mean, batch * seen.request_tokens_per_s.at(batch))
    return max(prefill_s, place_s)


def prefill_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the seconds to prefill what of the prompt is not cached there."""
    if candidate.snapshot is None:
        return math.inf
    return _seconds(request.prompt_tokens - candidate.cached_tokens, candidate.snapshot.prefill_tokens_per_s)


def decode_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the seconds to generate the answer with this request in the batch, under the replica's depth plan.

    Today's batch lasts as long as the requests in it, which have half of a usual answer still to give. What comes
    after is not known, so beyond that only the replica's own speed counts: a long answer must not make today's
    differences look as if they lasted for ever, and send every long request to the same few replicas.
    """
    seen = candidate.snapshot
    if seen is None:
        return math.inf
    batch = min(candidate.requests + 1, seen.max_running_requests)
    now = min(request.output_tokens, seen.output_tokens_mean / 2) if seen.output_tokens_mean else request.output_tokens
    alone_s = _seconds(request.output_tokens - now, seen.request_tokens_per_s.at(1))
    return _seconds(now, seen.request_tokens_per_s.at(batch)) + alone_s


def in_flight_requests(request: RouteRequest, candidate: Candidate) -> float:
    """Return how many open requests this dispatcher has there: needs no report."""
    return candidate.open_requests


def least_cost(weighed: Sequence[Weighed]) -> Weighed:
    """Take the cheapest; the first of equals, which chance has put there."""
    return min(weighed, key=lambda each: each.cost)


def _seconds(amount: float, per_s: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / per_s if per_s > 0 else math.inf
