"""Chooses the replica for a request: a pure function of request, fleet, requests in flight, time and random bits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from peagle.router.dispatch.fleet import Fleet
from peagle.router.dispatch.in_flight import InFlight, Sent
from peagle.router.dispatch.policies.soonest import SOONEST
from peagle.router.dispatch.policy import Candidate, Exclusion, HomeUse, Policy, RouteReason, Weighed
from peagle.router.dispatch.scorers import wait_s
from peagle.router.snapshot import ReplicaSnapshot, RouteRequest

# Retry-After when the waiting time is unknown, and the bounds of any Retry-After.
RETRY_AFTER_UNKNOWN_S = 5.0
RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one decision.

    Attributes:
        handful: Candidates weighed against each other: the home of the request's prefix, and random replicas. A home
            is a replica that `Homes` assigns to a prefix. More candidates would be worse: all dispatchers read the
            same reports, so more dispatchers would choose the same replica.
        probed: Replicas examined, a handful at a time, before the request is shed.
        stale_after_s: Age at which a report is no longer believed: four missed reports.
        home_load_ratio: A home gets the requests for its prefixes while its load is below this multiple of the mean
            load per replica, rounded up. A load is the estimated number of open requests from all dispatchers together.
        home_free_requests: A home with a load below this gets them whatever the mean is: the mean of an almost idle
            fleet says little.
    """

    handful: int = 3
    probed: int = 18
    stale_after_s: float = 2.0
    home_load_ratio: float = 1.25
    home_free_requests: int = 4


LIMITS = Limits()


class ShedReason(StrEnum):
    """Why no replica was chosen: of all reasons found, the one likeliest to pass soon."""

    FULL = "full"
    DRAINING = "draining"
    TRIED = "tried"
    STALLED = "stalled"
    DEAD = "dead"
    NO_REPLICAS = "no-replicas"


@dataclass(frozen=True, slots=True)
class Route:
    """Send the request to `replica_id`.

    Attributes:
        replica_id: The chosen replica.
        reason: `queued` if no candidate had room and this is the best of them. Otherwise `least-in-flight` if a weighed
            candidate had no current report, or `home` if this is the home of the request's prefix, or else the
            policy's own reason. A policy with `HomeUse.FIRST` that takes the home always has the reason `home`.
        weighed: The candidates that were weighed, with their costs, and the excluded replicas. Replicas without room
            are not in it unless the reason is `queued`. Costs are in the unit of the policy's scorers, or of its
            fallback if a weighed candidate had no current report.
    """

    replica_id: str
    reason: str
    weighed: tuple[Weighed, ...]

    @property
    def ranked(self) -> tuple[str, ...]:
        """The weighed candidates: the chosen one, then the others, cheapest first."""
        others = [each for each in self.weighed if each.excluded is None and each.replica_id != self.replica_id]
        others.sort(key=lambda each: each.cost)
        return (self.replica_id, *(each.replica_id for each in others))


@dataclass(frozen=True, slots=True)
class Shed:
    """No replica can take the request now; a client that cannot queue should retry after `retry_after_s`."""

    reason: ShedReason
    retry_after_s: float
    weighed: tuple[Weighed, ...] = ()


@dataclass(frozen=True, slots=True)
class _Decision:
    """Inputs shared by all steps of one decision."""

    request: RouteRequest
    fleet: Fleet
    in_flight: InFlight
    now_s: float
    policy: Policy
    limits: Limits


def decide(
    request: RouteRequest,
    fleet: Fleet,
    in_flight: InFlight,
    now_s: float,
    draw: int,
    policy: Policy = SOONEST,
    limits: Limits = LIMITS,
) -> Route | Shed:
    """Choose a replica for `request`. Changes no argument; examines only a few replicas.

    Args:
        request: The request to send.
        fleet: The replicas, with their reports.
        in_flight: Requests that this dispatcher has sent.
        now_s: The time, on the clock of the reports and of `in_flight`.
        draw: At least 64 random bits, new for every decision: dispatchers that share them would herd.
        policy: How candidates are compared.
        limits: Number of candidates, and maximum age of a report.
    """
    decision = _Decision(request, fleet, in_flight, now_s, policy, limits)
    home = _home(decision)
    ruled_out: list[tuple[Candidate, Exclusion]] = []
    without_room: list[Candidate] = []
    for handful in _handfuls(decision, home, draw):
        with_room: list[Candidate] = []
        for candidate in handful:
            if (reason := policy.exclusion(request, candidate)) is not None:
                ruled_out.append((candidate, reason))
            else:
                (with_room if policy.has_room(request, candidate) else without_room).append(candidate)
        if with_room:
            return _route(decision, with_room, _excluded(ruled_out), home)
    if without_room:
        return replace(_route(decision, without_room, _excluded(ruled_out), home), reason=RouteReason.QUEUED)
    return _shed(decision, ruled_out)


def _home(decision: _Decision) -> Candidate | None:
    """Return the home of the request's prefix: the first of its homes that may take more."""
    request, in_flight, limits = decision.request, decision.in_flight, decision.limits
    if request.affinity_key is None or decision.policy.homes is HomeUse.NONE or not decision.fleet.replica_ids:
        return None
    # Other dispatchers follow the same rule, so every load is this dispatcher's own, times the number of dispatchers.
    # A dispatcher's own requests alone may never reach the bound while all dispatchers together overload a home.
    dispatchers = decision.fleet.dispatchers
    mean = (dispatchers * in_flight.open_requests + 1) / len(decision.fleet.replica_ids)
    bound = max(limits.home_free_requests, math.ceil(limits.home_load_ratio * mean))
    for replica_id in decision.fleet.homes.of_key(request.affinity_key):
        if dispatchers * in_flight.to(replica_id).open_requests < bound:
            candidate = _look(decision, replica_id, is_home=True)
            if decision.policy.exclusion(request, candidate) is None:
                return candidate
    return None


def _handfuls(decision: _Decision, home: Candidate | None, draw: int) -> Iterator[list[Candidate]]:
    """Yield the candidates, home first, a handful at a time."""
    ids, limits = decision.fleet.replica_ids, decision.limits
    others = (ids[place] for place in islice(_walk(len(ids), draw), limits.probed))
    if home is not None:
        others = (replica_id for replica_id in others if replica_id != home.replica_id)
    first = [home] if home is not None else []
    while handful := first + [_look(decision, each) for each in islice(others, limits.handful - len(first))]:
        yield handful
        first = []


def _walk(count: int, draw: int) -> Iterator[int]:
    """Yield 0..count-1 in random order: a lazy shuffle, random while the bits of `draw` last."""
    moved: dict[int, int] = {}
    for last in range(count - 1, -1, -1):
        draw, place = divmod(draw, last + 1)
        yield moved.get(place, place)
        moved[place] = moved.get(last, last)


def _look(decision: _Decision, replica_id: str, is_home: bool = False) -> Candidate:
    """Collect what is known about one replica for this request."""
    request, fleet = decision.request, decision.fleet
    seen, sent = fleet.snapshots.get(replica_id), decision.in_flight.to(replica_id)
    # Assume that a home has its prefix in its cache. If it has not, this request puts the prefix there for later ones.
    has_prefix = is_home or request.affinity_key in sent.prefixes
    cached = min(request.prefix_tokens, request.prompt_tokens) if has_prefix else 0
    age_s = math.inf if seen is None else decision.now_s - seen.taken_at_s
    if seen is None or age_s > decision.limits.stale_after_s:
        mine = sent.open_requests
        return Candidate(replica_id, seen, False, mine, mine, mine, 0.0, math.inf, cached)
    # Other dispatchers' requests since the report are unknown. They follow the same rule, so assume that each of them
    # sent as many requests as this dispatcher, and that as many of those ended.
    dispatchers, since = fleet.dispatchers, len(sent.unseen) - sent.ended_requests
    free = math.inf
    if seen.kv_capacity_tokens:
        free = seen.kv_capacity_tokens * (1.0 - seen.kv_usage_ratio) - dispatchers * sent.unseen_kv_tokens
    return Candidate(
        replica_id,
        seen,
        seen.has_rates or not decision.policy.needs_rates,
        sent.open_requests,
        max(sent.open_requests, seen.requests + since),
        # At least this dispatcher's own. If more of its requests ended than it sent, `since` is negative, and the sum
        # subtracts as many for every other dispatcher, although possibly none of theirs ended.
        max(sent.open_requests, seen.requests + dispatchers * since),
        _queued_prompt_tokens(seen, sent, dispatchers, decision.now_s),
        free,
        cached,
    )


def _queued_prompt_tokens(seen: ReplicaSnapshot, sent: Sent, dispatchers: int, now_s: float) -> float:
    """Return the prompt tokens still to be prefilled: the reported queue and later requests, drained over time.

    Computed from one sent request to the next: once its queue is empty, a replica has no work until a request
    arrives, so idle time must not be subtracted from later prompts.
    """
    queued, at_s = float(seen.queued_prompt_tokens), seen.taken_at_s
    for request in sent.unseen.values():
        passed_s = max(0.0, request.sent_at_s - at_s)
        queued = max(0.0, queued - passed_s * seen.prefill_tokens_per_s) + dispatchers * request.prompt_tokens
        at_s += passed_s
    return max(0.0, queued - max(0.0, now_s - at_s) * seen.prefill_tokens_per_s)


def _route(
    decision: _Decision, candidates: list[Candidate], excluded: tuple[Weighed, ...], home: Candidate | None
) -> Route:
    policy, by_report = decision.policy, all(candidate.is_current for candidate in candidates)
    weighed = [policy.weigh(decision.request, candidate, by_report) for candidate in candidates]
    goes_home = policy.homes is HomeUse.FIRST and candidates[0] is home
    chosen = weighed[0] if goes_home else policy.picker(weighed)
    if goes_home or (by_report and home is not None and chosen.replica_id == home.replica_id):
        reason: str = RouteReason.HOME
    else:
        reason = policy.reason if by_report else RouteReason.LEAST_IN_FLIGHT
    return Route(chosen.replica_id, reason, (*weighed, *excluded))


def _shed(decision: _Decision, ruled_out: list[tuple[Candidate, Exclusion]]) -> Shed:
    """Return the reason likeliest to pass soon. `retry_after_s` is the shortest predicted wait at a full replica."""
    found = {reason for _, reason in ruled_out}
    reason = next((ShedReason(kind) for kind in Exclusion if kind in found), ShedReason.NO_REPLICAS)
    full = [candidate for candidate, why in ruled_out if why is Exclusion.FULL and candidate.is_current]
    soonest_s = min((wait_s(decision.request, candidate) for candidate in full), default=math.inf)
    retry_after_s = soonest_s if math.isfinite(soonest_s) else RETRY_AFTER_UNKNOWN_S
    return Shed(reason, min(max(retry_after_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S), _excluded(ruled_out))


def _excluded(ruled_out: list[tuple[Candidate, Exclusion]]) -> tuple[Weighed, ...]:
    return tuple(Weighed(candidate.replica_id, math.inf, {}, reason) for candidate, reason in ruled_out)
