import math
from dataclasses import replace

from peagle.router.dispatch.scorers import decode_s, prefill_s, wait_s
from peagle.router.snapshot import RequestRates
from support.depth.candidates import IDLE, REQUEST, SNAPSHOT


def test_wait_is_the_queued_prompts_at_the_prefill_rate() -> None:
    assert wait_s(REQUEST, IDLE) == 0.0
    assert wait_s(REQUEST, replace(IDLE, queued_prompt_tokens=1500.0)) == 3.0


def test_wait_for_a_place_in_a_full_batch_is_the_time_in_which_enough_answers_end() -> None:
    # Of five requests ahead three already wait. The batch gives 100 tokens/s, so 400-token answers end every 4 s.
    assert wait_s(REQUEST, replace(IDLE, requests=3)) == 0.0
    assert wait_s(REQUEST, replace(IDLE, requests=6, queued_prompt_tokens=100.0)) == 3 * 4.0


def test_prefill_counts_only_what_is_not_cached() -> None:
    assert prefill_s(REQUEST, IDLE) == 2.0
    assert prefill_s(REQUEST, replace(IDLE, cached_tokens=750)) == 0.5


def test_decode_is_at_the_rate_of_the_batch_with_this_request_in_it() -> None:
    assert decode_s(REQUEST, IDLE) == 1.0
    assert decode_s(REQUEST, replace(IDLE, requests=1)) == 2.0
    assert decode_s(REQUEST, replace(IDLE, requests=9)) == 4.0, "the batch holds no more than its places"


def test_after_the_current_batch_only_the_replicas_own_speed_counts() -> None:
    long = replace(REQUEST, output_tokens=1000)
    assert decode_s(long, replace(IDLE, requests=1)) == 200 / 50 + 800 / 100


def test_unknown_rates_do_not_divide_by_zero() -> None:
    unknown = replace(IDLE, snapshot=replace(SNAPSHOT, prefill_tokens_per_s=0.0), queued_prompt_tokens=1.0)
    assert wait_s(REQUEST, unknown) == math.inf
    assert not replace(SNAPSHOT, prefill_tokens_per_s=0.0).has_rates
    assert not replace(SNAPSHOT, request_tokens_per_s=RequestRates()).has_rates
