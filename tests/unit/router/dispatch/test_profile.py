import math
from dataclasses import replace

import pytest

from peagle.router.dispatch import SOONEST, Candidate
from peagle.router.dispatch.profile import Exclusion, decode_s, kv_room, not_full, prefill_s, wait_s
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


def test_wait_is_the_queued_prompts_at_the_prefill_rate() -> None:
    assert wait_s(REQUEST, IDLE) == 0.0
    assert wait_s(REQUEST, replace(IDLE, queued_prompt_tokens=1500.0)) == 3.0


def test_wait_for_a_place_in_a_full_batch_is_the_time_in_which_enough_answers_end() -> None:
    # Three of five ahead wait already; the batch gives 100 tokens/s, so 400-token answers end every 4 s.
    assert wait_s(REQUEST, replace(IDLE, requests=3)) == 0.0
    assert wait_s(REQUEST, replace(IDLE, requests=6, queued_prompt_tokens=100.0)) == 3 * 4.0


def test_prefill_counts_only_what_is_not_cached() -> None:
    assert prefill_s(REQUEST, IDLE) == 2.0
    assert prefill_s(REQUEST, replace(IDLE, cached_tokens=750)) == 0.5


def test_decode_is_at_the_rate_of_the_batch_with_this_request_in_it() -> None:
    assert decode_s(REQUEST, IDLE) == 1.0
    assert decode_s(REQUEST, replace(IDLE, requests=1)) == 2.0
    assert decode_s(REQUEST, replace(IDLE, requests=9)) == 4.0, "the batch holds no more than its places"


def test_beyond_the_life_of_todays_batch_only_the_replica_s_own_speed_counts() -> None:
    long = replace(REQUEST, output_tokens=1000)
    assert decode_s(long, replace(IDLE, requests=1)) == 200 / 50 + 800 / 100


def test_room_counts_the_whole_request_less_what_is_cached() -> None:
    assert kv_room(REQUEST, replace(IDLE, free_kv_tokens=1100.0))
    assert not kv_room(REQUEST, replace(IDLE, free_kv_tokens=1099.0))
    assert kv_room(REQUEST, replace(IDLE, free_kv_tokens=1099.0, cached_tokens=1))


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_score_that_breaks_the_contract_makes_a_candidate_the_last_choice(bad: float) -> None:
    profile = replace(SOONEST, scorers={"broken_s": lambda request, candidate: bad})
    assert profile.weigh(REQUEST, IDLE, by_report=True).cost == math.inf


def test_a_weighed_candidate_shows_the_terms_that_its_cost_is_the_sum_of() -> None:
    weighed = SOONEST.weigh(REQUEST, replace(IDLE, queued_prompt_tokens=250.0), by_report=True)
    assert weighed.terms == {"wait_s": 0.5, "prefill_s": 2.0, "decode_s": 1.0}
    assert weighed.cost == 3.5


def test_rates_that_are_not_known_are_no_division_by_zero() -> None:
    unknown = replace(IDLE, snapshot=replace(SNAPSHOT, prefill_tokens_per_s=0.0), queued_prompt_tokens=1.0)
    assert wait_s(REQUEST, unknown) == math.inf
    assert not replace(SNAPSHOT, prefill_tokens_per_s=0.0).has_rates
    assert not replace(SNAPSHOT, request_tokens_per_s=RequestRates()).has_rates


def test_only_what_is_certain_makes_a_replica_full() -> None:
    limit = SNAPSHOT.max_ongoing_requests
    assert not_full(REQUEST, replace(IDLE, known_requests=limit - 1, requests=16 * limit)) is None
    assert not_full(REQUEST, replace(IDLE, known_requests=limit)) is Exclusion.FULL
