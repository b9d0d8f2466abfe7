"""An engine's rates are learned from its steps and requests, and forget what is long past."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.router.rates import EngineRates
from peagle.router.snapshot import RequestRates

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


def test_a_linear_step_time_is_found_and_holds_beyond_the_sizes_seen() -> None:
    rates, chance = EngineRates(), random.Random(1)
    for _ in range(400):
        batch = chance.randint(1, 8)
        seconds = (0.010 + 0.002 * batch) * chance.uniform(0.9, 1.1)
        rates.stepped(batch, batch, batch * seconds)
    found = rates.request_tokens_per_s(32)
    for batch in (1, 8, 20, 32):
        assert found.at(batch) == pytest.approx(1 / (0.010 + 0.002 * batch), rel=0.05)


def test_speculation_is_in_it_by_the_tokens_that_a_step_gives() -> None:
    rates = EngineRates()
    for _ in range(50):
        rates.stepped(batch_size=2, tokens=6, seconds=2 * 0.030)
    assert rates.request_tokens_per_s(4).at(2) == pytest.approx(100.0)


def test_one_batch_size_alone_says_nothing_of_others_and_none_is_ever_faster_in_a_larger_batch() -> None:
    flat, falling = EngineRates(), EngineRates()
    for _ in range(50):
        flat.stepped(4, 4, 4 * 0.020)
        falling.stepped(1, 1, 0.030)
        falling.stepped(8, 8, 8 * 0.010)
    assert [flat.request_tokens_per_s(16).at(batch) for batch in (1, 7, 16)] == pytest.approx([50.0] * 3)
    speeds = [falling.request_tokens_per_s(16).at(batch) for batch in range(1, 17)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in pairwise(speeds))


def test_times_that_grow_faster_than_their_cause_are_a_line_through_the_origin() -> None:
    rates = EngineRates()
    for _ in range(50):
        for batch, between_s in ((1, 0.001), (8, 0.080)):
            rates.stepped(batch, batch, batch * between_s)
        for tokens, prefill_s in ((100, 0.01), (1000, 1.0)):
            rates.finished(tokens, prefill_s, 10)
    assert rates.request_tokens_per_s(8).at(8) == pytest.approx((1 + 64) / (1 * 0.001 + 8 * 0.080) / 8, rel=0.01)
    assert rates.prefill_tokens_per_s == pytest.approx((100**2 + 1000**2) / (100 * 0.01 + 1000 * 1.0), rel=0.02)


def test_a_first_slow_step_or_request_claims_nothing() -> None:
    rates = EngineRates()
    rates.stepped(1, 1, 5.0)
    rates.finished(prompt_tokens=1, prefill_s=5.0, output_tokens=2)
    assert (rates.prefill_tokens_per_s, rates.request_tokens_per_s(4)) == (0.0, UNKNOWN)
    for _ in range(20):
        rates.stepped(1, 1, 0.01)
        rates.finished(prompt_tokens=100, prefill_s=0.1, output_tokens=2)
    assert rates.prefill_tokens_per_s > 0
    assert rates.request_tokens_per_s(4) != UNKNOWN


def test_what_cannot_be_a_step_is_left_out() -> None:
    rates = EngineRates()
    for batch, tokens, seconds in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0)):
        rates.stepped(batch, tokens, seconds)
    assert rates.request_tokens_per_s(4) == UNKNOWN


def test_a_request_that_failed_before_its_prefill_does_not_make_the_replica_look_slow() -> None:
    rates = EngineRates()
    for _ in range(10):
        rates.finished(prompt_tokens=100, prefill_s=0.05, output_tokens=20)
    rates.finished(prompt_tokens=100, prefill_s=400_000.0, output_tokens=0)
    assert rates.prefill_tokens_per_s == pytest.approx(2000.0)
    assert rates.output_tokens_mean == pytest.approx(20.0)


def test_an_engine_that_slows_down_is_believed_after_some_hundred_steps_and_requests() -> None:
    rates = EngineRates()
    for between_s, prefill_s, tokens in ((0.010, 0.1, 40), (0.030, 0.4, 160)):
        for _ in range(4000):
            rates.stepped(1, 1, between_s)
        for _ in range(400):
            rates.finished(prompt_tokens=100, prefill_s=prefill_s, output_tokens=tokens)
    assert rates.request_tokens_per_s(1).at(1) == pytest.approx(1 / 0.030, rel=0.02)
    assert rates.prefill_tokens_per_s == pytest.approx(250.0, rel=0.02)
    assert rates.output_tokens_mean == pytest.approx(160.0, rel=0.02)


def test_a_replica_whose_prompts_are_short_is_not_thought_slow() -> None:
    short, long = EngineRates(), EngineRates()
    chance = random.Random(2)
    for _ in range(60):
        for rates, longest in ((short, 60), (long, 4000)):
            tokens = chance.randint(10, longest)
            rates.finished(tokens, 0.015 + tokens / 40_000, 100)
    assert short.prefill_tokens_per_s == pytest.approx(40_000, rel=0.01)
    assert long.prefill_tokens_per_s == pytest.approx(40_000, rel=0.01)


def test_prompts_of_one_length_give_a_rate_and_so_do_those_that_noise_puts_upside_down() -> None:
    alike, noisy = EngineRates(), EngineRates()
    for turn in range(20):
        alike.finished(100, 0.05, 10)
        noisy.finished(100 if turn % 2 else 200, 0.10 if turn % 2 else 0.05, 10)
    assert alike.prefill_tokens_per_s == pytest.approx(2000.0)
    assert 1000.0 <= noisy.prefill_tokens_per_s <= 4000.0
