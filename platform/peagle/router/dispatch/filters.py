"""What rules a replica out for a request, and what makes the request wait there: shared by policies."""

from peagle.router.dispatch.policy import Candidate, Exclusion
from peagle.router.snapshot import ReplicaState, RouteRequest

_EXCLUDED = {
    ReplicaState.STALLED: Exclusion.STALLED,
    ReplicaState.DRAINING: Exclusion.DRAINING,
    ReplicaState.DEAD: Exclusion.DEAD,
}


def not_tried(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Rule out replicas that have failed this request already."""
    return Exclusion.TRIED if candidate.replica_id in request.tried else None


def ready(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Rule out replicas that are going or gone; one that has not reported counts as ready."""
    if candidate.snapshot is None or candidate.snapshot.state is ReplicaState.READY:
        return None
    return _EXCLUDED[candidate.snapshot.state]


def not_full(request: RouteRequest, candidate: Candidate) -> Exclusion | None:
    """Rule out replicas whose batch and queue are full; a guess of what others have sent is no reason."""
    if candidate.snapshot is None or candidate.known_requests < candidate.snapshot.max_ongoing_requests:
        return None
    return Exclusion.FULL


def kv_room(request: RouteRequest, candidate: Candidate) -> bool:
    """Return whether the KV cache can hold the whole request beside what it holds now."""
    return request.prompt_tokens - candidate.cached_tokens + request.output_tokens <= candidate.free_kv_tokens
