from dataclasses import replace

from peagle.router.dispatch import Exclusion
from peagle.router.dispatch.filters import kv_room, not_full
from support.depth.candidates import IDLE, REQUEST, SNAPSHOT


def test_room_counts_the_whole_request_less_what_is_cached() -> None:
    assert kv_room(REQUEST, replace(IDLE, free_kv_tokens=1100.0))
    assert not kv_room(REQUEST, replace(IDLE, free_kv_tokens=1099.0))
    assert kv_room(REQUEST, replace(IDLE, free_kv_tokens=1099.0, cached_tokens=1))


def test_only_known_requests_make_a_replica_full() -> None:
    limit = SNAPSHOT.max_ongoing_requests
    assert not_full(REQUEST, replace(IDLE, known_requests=limit - 1, requests=16 * limit)) is None
    assert not_full(REQUEST, replace(IDLE, known_requests=limit)) is Exclusion.FULL
