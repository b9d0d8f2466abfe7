"""An engine's rates are learned from its steps and requests, and old observations fade."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.router.dispatch import scorers
from peagle.router.dispatch.policy import Candidate
from peagle.router.rates import AGE_HALF_LIFE_S, REQUESTS_DOUBTED, STEPS_DOUBTED, EngineRates, FleetRates
from peagle.router.snapshot import ReplicaSnapshot, RequestRates, RouteRequest

UNKNOWN = RequestRates()


@given(st.dictionaries(st.integers(1, 1024), st.floats(0.1, 1e4), min_size=1, max_size=8), st.integers(1, 2048))
def test_rates_are_exact_where_they_are_known_and_between_their_neighbours_elsewhere(
    known: dict[int, float], batch: int
) -> None:
    rates = RequestRates.of(known)
    assert [rates.at(size) for size in known] == pytest.approx(list(known.values()))
    below = known[max((size for size in known if size <= batch), default=min(known))]
    above = known[min((size for size in known if size >= batch), default=max(known))]
    assert min(below, above) * (1 - 1e-9) <= rates.at(batch) <= max(below, above) * (1 + 1e-9)


def test_nothing_is_known_before_anything_happened() -> None:
    rates = EngineRates()
    assert (rates.prefill_tokens_per_s, rates.output_tokens_mean, rates.request_tokens_per_s(8)) == (0.0, 0.0, UNKNOWN)


def test_a_request_that_is_embedded_costs_its_prompt_alone() -> None:
    rates = EngineRates()
    for tokens in (100, 200, 300, 400):
        rates.pooled(tokens, tokens / 1000.0, now_s=0.0)
    seen = rates.told(ReplicaSnapshot(replica_id="r", taken_at_s=0.0, max_running_requests=4), 0.0)
    assert seen.has_rates
    assert FleetRates([seen]).levelled(seen) == seen
    request = RouteRequest(request_id="q", prompt_tokens=500, output_tokens=1)
    busy = Candidate("r", seen, True, 9, 9, 9, queued_prompt_tokens=250.0, free_kv_tokens=math.inf, cached_tokens=0)
    costs = [cost(request, busy) for cost in (scorers.wait_s, scorers.prefill_s, scorers.decode_s)]
    assert costs == pytest.approx([0.25, 0.5, 0.0], abs=1e-6)


def test_a_linear_step_time_is_found_and_holds_beyond_the_sizes_seen() -> None:
    rates, chance = EngineRates(), random.Random(1)
    for _ in range(400):
        batch = chance.randint(1, 8)
        seconds = (0.010 + 0.002 * batch) * chance.uniform(0.9, 1.1)
        rates.stepped(batch, batch, batch * seconds, now_s=0.0)
    found = rates.request_tokens_per_s(32)
    for batch in (1, 8, 20, 32):
        assert found.at(batch) == pytest.approx(1 / (0.010 + 0.002 * batch), rel=0.05)


def test_rates_include_speculation_through_the_tokens_of_a_step() -> None:
    rates = EngineRates()
    for _ in range(50):
        rates.stepped(batch_size=2, tokens=6, seconds=2 * 0.030, now_s=0.0)
    assert rates.request_tokens_per_s(4).at(2) == pytest.approx(100.0)


def test_one_batch_size_alone_says_nothing_of_others_and_none_is_ever_faster_in_a_larger_batch() -> None:
    flat, falling = EngineRates(), EngineRates()
    for _ in range(50):
        flat.stepped(4, 4, 4 * 0.020, now_s=0.0)
        falling.stepped(1, 1, 0.030, now_s=0.0)
        falling.stepped(8, 8, 8 * 0.010, now_s=0.0)
    assert [flat.request_tokens_per_s(16).at(batch) for batch in (1, 7, 16)] == pytest.approx([50.0] * 3)
    speeds = [falling.request_tokens_per_s(16).at(batch) for batch in range(1, 17)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(speeds))


def test_times_that_grow_faster_than_their_cause_are_a_line_through_the_origin() -> None:
    rates = EngineRates()
    for _ in range(50):
        for batch, between_s in ((1, 0.001), (8, 0.080)):
            rates.stepped(batch, batch, batch * between_s, now_s=0.0)
        for tokens, prefill_s in ((100, 0.01), (1000, 1.0)):
            rates.finished(tokens, prefill_s, 10, now_s=0.0)
    assert rates.request_tokens_per_s(8).at(8) == pytest.approx((1 + 64) / (1 * 0.001 + 8 * 0.080) / 8, rel=0.01)
    assert rates.prefill_tokens_per_s == pytest.approx((100**2 + 1000**2) / (100 * 0.01 + 1000 * 1.0), rel=0.02)


def test_a_slow_first_step_or_request_yields_no_rate() -> None:
    rates = EngineRates()
    rates.stepped(1, 1, 5.0, now_s=0.0)
    rates.finished(prompt_tokens=1, prefill_s=5.0, output_tokens=2, now_s=0.0)
    assert (rates.prefill_tokens_per_s, rates.request_tokens_per_s(4)) == (0.0, UNKNOWN)
    for _ in range(20):
        rates.stepped(1, 1, 0.01, now_s=0.0)
        rates.finished(prompt_tokens=100, prefill_s=0.1, output_tokens=2, now_s=0.0)
    assert rates.prefill_tokens_per_s > 0
    assert rates.request_tokens_per_s(4) != UNKNOWN


def test_impossible_steps_are_ignored() -> None:
    rates = EngineRates()
    for batch, tokens, seconds in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0)):
        rates.stepped(batch, tokens, seconds, now_s=0.0)
    assert rates.request_tokens_per_s(4) == UNKNOWN


def test_a_request_that_failed_before_its_prefill_does_not_make_the_replica_look_slow() -> None:
    rates = EngineRates()
    for _ in range(10):
        rates.finished(prompt_tokens=100, prefill_s=0.05, output_tokens=20, now_s=0.0)
    rates.finished(prompt_tokens=100, prefill_s=400_000.0, output_tokens=0, now_s=0.0)
    assert rates.prefill_tokens_per_s == pytest.approx(2000.0)
    assert rates.output_tokens_mean == pytest.approx(20.0)


def test_an_engine_that_slows_down_is_believed_after_some_hundred_steps_and_requests() -> None:
    rates = EngineRates()
    for between_s, prefill_s, tokens in ((0.010, 0.1, 40), (0.030, 0.4, 160)):
        for _ in range(4000):
            rates.stepped(1, 1, between_s, now_s=0.0)
        for _ in range(400):
            rates.finished(prompt_tokens=100, prefill_s=prefill_s, output_tokens=tokens, now_s=0.0)
    assert rates.request_tokens_per_s(1).at(1) == pytest.approx(1 / 0.030, rel=0.02)
    assert rates.prefill_tokens_per_s == pytest.approx(250.0, rel=0.02)
    assert rates.output_tokens_mean == pytest.approx(160.0, rel=0.02)


def test_a_replica_whose_prompts_are_short_is_not_thought_slow() -> None:
    short, long = EngineRates(), EngineRates()
    chance = random.Random(2)
    for _ in range(60):
        for rates, longest in ((short, 60), (long, 4000)):
            tokens = chance.randint(10, longest)
            rates.finished(tokens, 0.015 + tokens / 40_000, 100, now_s=0.0)
    assert short.prefill_tokens_per_s == pytest.approx(40_000, rel=0.01)
    assert long.prefill_tokens_per_s == pytest.approx(40_000, rel=0.01)


def test_prompts_of_one_length_give_a_rate_and_so_do_those_that_noise_puts_upside_down() -> None:
    alike, noisy = EngineRates(), EngineRates()
    for turn in range(20):
        alike.finished(100, 0.05, 10, now_s=0.0)
        noisy.finished(100 if turn % 2 else 200, 0.10 if turn % 2 else 0.05, 10, now_s=0.0)
    assert alike.prefill_tokens_per_s == pytest.approx(2000.0)
    assert 1000.0 <= noisy.prefill_tokens_per_s <= 4000.0


def test_slow_steps_of_some_time_ago_are_outvoted_by_a_few_new_ones() -> None:
    rates = EngineRates()
    for _ in range(500):
        rates.stepped(1, 1, 0.040, now_s=0.0)
    for _ in range(60):
        rates.stepped(1, 1, 0.010, now_s=60.0)
    assert rates.request_tokens_per_s(1).at(1) == pytest.approx(1 / 0.0175, rel=0.02), "20 old steps and 60 new ones"


def test_one_request_after_a_long_pause_does_not_replace_all_earlier_evidence() -> None:
    rates = EngineRates()
    for tokens in range(100, 2100, 100):
        rates.finished(tokens, 0.010 + tokens / 10_000, 10, now_s=0.0)
    rates.finished(1000, 1.0, 10, now_s=3600.0)
    assert 5_000 <= rates.prefill_tokens_per_s <= 20_000, "alone it says 1,000"


def test_evidence_halves_with_time_and_grows_with_observations() -> None:
    rates, seen = EngineRates(), ReplicaSnapshot("a", 0.0)
    for _ in range(40):
        rates.stepped(1, 1, 0.01, now_s=0.0)
        rates.finished(100, 0.1, 10, now_s=0.0)
    now, later = rates.told(seen, 0.0), rates.told(seen, 2 * AGE_HALF_LIFE_S)
    assert (now.rate_steps, now.rate_prefills) == (pytest.approx(40, rel=0.05), pytest.approx(40, rel=0.3))
    assert later.rate_steps == pytest.approx(now.rate_steps / 4)
    assert later.rate_prefills == pytest.approx(now.rate_prefills / 4)
    assert later.request_tokens_per_s == now.request_tokens_per_s


def measured(name: str, tokens_per_s: float, steps: float, prefill_tokens_per_s: float = 1000.0) -> ReplicaSnapshot:
    rates = RequestRates.of({1: tokens_per_s, 8: tokens_per_s / 2})
    requests = steps * REQUESTS_DOUBTED / STEPS_DOUBTED
    return ReplicaSnapshot(
        name,
        0.0,
        prefill_tokens_per_s=prefill_tokens_per_s,
        request_tokens_per_s=rates,
        rate_steps=steps,
        rate_prefills=requests,
        output_tokens_mean=100.0,
    )


def test_rates_with_little_evidence_are_averaged_and_rates_with_much_evidence_kept() -> None:
    fast, slow = measured("fast", 100.0, 1e6, 4000.0), measured("slow", 25.0, 1e6, 1000.0)
    once_slow = measured("once slow", 25.0, 1e-3, 1000.0)
    fleet = FleetRates([fast, fast, fast, slow, once_slow])
    mean_s = (3 / 100 + 1 / 25) / 4
    for seen, token_s in ((fast, 1 / 100), (slow, 1 / 25), (once_slow, mean_s)):
        level = fleet.levelled(seen)
        rates = [1 / each for each in level.request_tokens_per_s.tokens_per_s]
        assert rates == pytest.approx([token_s, 2 * token_s], rel=1e-3)
    assert fleet.levelled(once_slow).prefill_tokens_per_s == pytest.approx(1 / ((3 / 4000 + 1 / 1000) / 4), rel=1e-3)
    doubted = fleet.levelled(measured("doubted", 25.0, STEPS_DOUBTED))
    assert 1 / doubted.request_tokens_per_s.at(1) == pytest.approx((mean_s + 1 / 25) / 2, rel=1e-3)


def test_a_replica_that_has_measured_nothing_has_the_fleets_rates() -> None:
    level = FleetRates([measured("a", 100.0, 500.0)]).levelled(ReplicaSnapshot("new", 0.0))
    assert level.has_rates
    assert level.request_tokens_per_s.at(8) == pytest.approx(50.0)
    assert level.prefill_tokens_per_s == pytest.approx(1000.0)


def test_without_any_measurement_snapshots_are_unchanged() -> None:
    new, known = ReplicaSnapshot("new", 0.0), measured("a", 100.0, 0.0)
    assert FleetRates([new, known]).levelled(new) == new
    assert FleetRates([new, known]).levelled(known) == known


def test_the_only_replica_is_as_fast_as_it_says() -> None:
    for steps in (1e-3, 30.0, 500.0):
        only = measured("a", 100.0, steps)
        level = FleetRates([only]).levelled(only)
        assert level.request_tokens_per_s.tokens_per_s == pytest.approx(only.request_tokens_per_s.tokens_per_s)
        assert level.prefill_tokens_per_s == pytest.approx(only.prefill_tokens_per_s)


def test_a_usual_answer_is_as_long_on_every_replica() -> None:
    """Its length depends on the model and the clients; a few requests would make one replica look slow."""
    short = replace(measured("a", 100.0, 500.0), output_tokens_mean=50.0)
    long = replace(short, replica_id="b", output_tokens_mean=150.0)
    fleet = FleetRates([short, long])
    assert fleet.levelled(short).output_tokens_mean == fleet.levelled(long).output_tokens_mean == 100.0
