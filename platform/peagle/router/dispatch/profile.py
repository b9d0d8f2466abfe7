"""How candidates are judged: filters rule out, scorers add up a cost, a picker takes one. One profile holds them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from peagle.router.snapshot import ReplicaSnapshot, ReplicaState, RouteRequest


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica as a decision sees it: its last report, and what this dispatcher knows beyond it.

    Attributes:
        replica_id: Which.
        snapshot: Its last report; None before the first.
        is_current: Whether the report is fresh and has rates, so that a time to finish can be predicted from it.
        open_requests: Open requests there that this dispatcher sent.
        known_requests: Requests there for all this dispatcher knows: reported or sent by it since, and not ended.
        requests: All requests there, where since the report the other dispatchers' have come and gone as its own.
        queued_prompt_tokens: Prompt tokens to be prefilled before this request's.
        free_kv_tokens: Room in its KV cache; infinite where that is not known.
        cached_tokens: Leading prompt tokens of this request that it most likely has cached.
    """

    replica_id: str
    snapshot: ReplicaSnapshot | None
    is_current: bool
    open_requests: int
    known_requests: int
    requests: int
    queued_prompt_tokens: float
    free_kv_tokens: float
    cached_tokens: int


class Exclusion(StrEnum):
    """Why a replica cannot take a request, from the most to the least likely to pass soon."""

    FULL = "full"
    DRAINING = "draining"
    TRIED = "tried"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Weighed:
    """One candidate's part in a decision: what it was ruled out for, or the terms that its cost is the sum of."""

    replica_id: str
    cost: float
    terms: Mapping[str, float]
    excluded: Exclusion | None = None


Filter = Callable[[RouteRequest, Candidate], Exclusion | None]
"""Returns why the candidate cannot take the request, or None."""

Fit = Callable[[RouteRequest, Candidate], bool]
"""Returns whether the candidate could start the request without waiting for room."""

Scorer = Callable[[RouteRequest, Candidate], float]
"""Returns a cost of at least 0, in the unit that the scorer's name ends in; NaN and less count as infinite."""

Picker = Callable[[Sequence[Weighed]], Weighed]
"""Returns one of at least one candidates, which come in random order behind the prefix's home."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One way to dispatch. Costs are summed, so all scorers of a set share one unit.

    Attributes:
        filters: Rule a candidate out; the first to object is the reason given.
        fits: A candidate that fails one is taken only where no other candidate is left.
        scorers: The cost, by name, of candidates whose reports are all current.
        fallback: The cost where one is not: it must not look at reports.
        picker: Takes one of the weighed candidates.
    """

    filters: tuple[Filter, ...]
    fits: tuple[Fit, ...]
    scorers: Mapping[str, Scorer]
    fallback: Mapping[str, Scorer]
    picker: Picker

    def exclusion(self, request: RouteRequest, candidate: Candidate) -> Exclusion | None:
        for judge in self.filters:
            if (reason := judge(request, candidate)) is not None:
                return reason
        return None

    def has_room(self, request: RouteRequest, candidate: Candidate) -> bool:
        return all(fits(request, candidate) for fits in self.fits)

    def weigh(self, request: RouteRequest, candidate: Candidate, by_report: bool) -> Weighed:
        """Return the candidate with its cost, by `scorers` or by `fallback`."""
        scorers = self.scorers if by_report else self.fallback
        terms = {name: _cost(scorer(request, candidate)) for name, scorer in scorers.items()}
        return Weighed(candidate.replica_id, sum(terms.values()), terms)


def _cost(value: float) -> float:
    return value if value >= 0 else math.inf


def not_tried(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Rule out replicas that have failed this request already."""
    return Exclusion.TRIED if candidate.replica_id in request.tried else None


def ready(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Rule out replicas that are going or gone; one that has not reported counts as ready."""
    if candidate.snapshot is None or candidate.snapshot.state is ReplicaState.READY:
        return None
    return Exclusion.DRAINING if candidate.snapshot.state is ReplicaState.DRAINING else Exclusion.DEAD


def not_full(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Rule out replicas whose batch and queue are full; a guess of what others have sent is no reason."""
    if candidate.snapshot is None or candidate.known_requests < candidate.snapshot.max_ongoing_requests:
        return None
    return Exclusion.FULL


def kv_room(request: RouteRequest, candidate: Candidate) -> bool:
    """Return whether the KV cache can hold the whole request beside what it holds now."""
    return request.prompt_tokens - candidate.cached_tokens + request.output_tokens <= candidate.free_kv_tokens


def wait_s(request: RouteRequest, candidate: Candidate) -> float:
    """Return the seconds until prefill starts: behind queued prompts, or behind those who wait for a place."""
    seen = candidate.snapshot
    if seen is None:
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


SOONEST = Profile(
    filters=(not_tried, ready, not_full),
    fits=(kv_room,),
    scorers={"wait_s": wait_s, "prefill_s": prefill_s, "decode_s": decode_s},
    fallback={"in_flight_requests": in_flight_requests},
    picker=least_cost,
)
"""The replica that is expected to finish the request first; least in-flight where reports are stale."""
