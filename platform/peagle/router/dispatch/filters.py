"""Shared by policies: what excludes a replica from a request, and what makes the request wait there."""

from peagle.router.dispatch.policy import Candidate, Exclusion
from peagle.router.snapshot import ReplicaState, RouteRequest

_EXCLUDED = {
    ReplicaState.STALLED: Exclusion.STALLED,
    ReplicaState.DRAINING: Exclusion.DRAINING,
    ReplicaState.DEAD: Exclusion.DEAD,
}


def not_tried(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Exclude replicas that have already failed this request."""
    return Exclusion.TRIED if candidate.replica_id in request.tried else None


def ready(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Exclude replicas that are stalled, draining or dead. A replica that has not reported counts as ready."""
    if candidate.snapshot is None or candidate.snapshot.state is ReplicaState.READY:
        return None
    return _EXCLUDED[candidate.snapshot.state]


def not_full(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Exclude replicas whose batch and queue are full; an estimate of other dispatchers' requests is not enough."""
    if candidate.snapshot is None or candidate.known_requests < candidate.snapshot.max_ongoing_requests:
        return None
    return Exclusion.FULL


def kv_room(request: RouteRequest, candidate: Candidate) -> bool:
    """Return whether the free part of the KV cache can hold the whole request."""
    return request.prompt_tokens - candidate.cached_tokens + request.output_tokens <= candidate.free_kv_tokens
