"""Shared by policies: costs of a request at a replica, in the unit at the end of each name, and pickers."""

import math
from collections.abc import Sequence

from peagle.router.dispatch.draft_record import tokens_expected
from peagle.router.dispatch.policy import Candidate, Weighed
from peagle.router.snapshot import DraftPlan, ReplicaSnapshot, RouteRequest


def wait_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the seconds until prefill starts, behind queued prompts or requests that wait for a place."""
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
    """Return the seconds to prefill the uncached part of the prompt."""
    if candidate.snapshot is None:
        return math.inf
    return _seconds(request.prompt_tokens - candidate.cached_tokens, candidate.snapshot.prefill_tokens_per_s)


def decode_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the seconds to generate the answer with this request in the batch, under the replica's depth plan.

    The current batch lasts as long as its requests, which on average have half an answer left. The load after that is
    unknown, so only the replica's own speed counts for the rest. Otherwise a long answer would extend today's
    differences forever and send every long request to the same few replicas.
    """
    seen = candidate.snapshot
    if seen is None:
        return math.inf
    return sum(_decode_parts_s(request, candidate, seen))


def decode_by_acceptance_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the same, with the tokens/s that the request's own acceptance yields at the replica's depths."""
    seen = candidate.snapshot
    if seen is None:
        return math.inf
    now_s, alone_s = _decode_parts_s(request, candidate, seen)
    if request.right_ratio is None or seen.drafts is None:
        return now_s + alone_s
    return now_s / _own_pace(request.right_ratio, seen.drafts, _batch(candidate, seen)) + alone_s


def _decode_parts_s(request: RouteRequest, candidate: Candidate, seen: ReplicaSnapshot) -> tuple[float, float]:
    """Return the seconds in the current batch, and after it."""
    now = min(request.output_tokens, seen.output_tokens_mean / 2) if seen.output_tokens_mean else request.output_tokens
    alone_s = _seconds(request.output_tokens - now, seen.request_tokens_per_s.at(1))
    return _seconds(now, seen.request_tokens_per_s.at(_batch(candidate, seen))), alone_s


def _batch(candidate: Candidate, seen: ReplicaSnapshot) -> int:
    return min(candidate.requests + 1, seen.max_running_requests)


def _own_pace(right_ratio: float, drafts: DraftPlan, batch_size: int) -> float:
    """Return the tokens of a step at this request's acceptance, over those of the replica's usual request."""
    depth = drafts.depth_at(batch_size)
    return tokens_expected(right_ratio, depth) / (1.0 + sum(drafts.survival[:depth]))


def in_flight_requests(request: RouteRequest, candidate: Candidate) -> float:
    """Return how many open requests this dispatcher has at the replica; needs no report."""
    return candidate.open_requests


def least_cost(weighed: Sequence[Weighed]) -> Weighed:
    """Return the cheapest candidate; among equals the first, since their order is random."""
    return min(weighed, key=lambda each: each.cost)


def _seconds(amount: float, per_s: float) -> float:
    if amount <= 0:
        return 0.0
    return amount / per_s if per_s > 0 else math.inf
