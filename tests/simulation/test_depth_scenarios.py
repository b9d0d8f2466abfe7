"""The depth rule with measured and published step times and curves, compared with a simpler rule."""

from dataclasses import replace
from itertools import accumulate
from math import log
from operator import mul
from statistics import fmean

import pytest

from peagle.router.depth import batch_ranges, start
from peagle.router.depth.rule.choice import wish
from peagle.router.depth.rule.state import calibrate
from peagle.router.snapshot import StepTime
from peagle.simulator.depth_loop import WholeRule
from support.depth.depth_scenarios import (
    BATCH_MAX,
    SmallRule,
    mixed,
    replica_of,
    served,
    settings_of,
    shifted,
    steady,
)
from support.depth.step_costs import COSTS, CURVES, DEPTHS


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("cost", ["8B-H200-measured", "20B-B200", "30B-A3B-H200"])
def test_it_reaches_97_percent_of_the_best_single_k_where_one_is_clearly_best(cost: str, curve: str) -> None:
    for seed, load in enumerate((8, 32, 128)):
        (ratio,), _ = served(steady(cost, curve, load), seed, WholeRule)
        # Here K = 0, 2 and 3 are close, and a slow step in calibration is believed until K = 0 is tried.
        least = 0.93 if (cost, load) == ("8B-H200-measured", 128) else 0.97
        assert ratio >= least, f"{load} concurrent requests"


@pytest.mark.parametrize("load", [4, 32, 128])
def test_it_settles_within_three_seconds_of_a_shift_of_acceptance(load: int) -> None:
    ratios, _ = served(shifted("8B-H200-measured", load, "HumanEval", "low", "SPEED-Bench"), 0, WholeRule)
    assert min(ratios[::2]) >= 0.97


def test_over_all_it_yields_more_than_the_small_rule() -> None:
    """Steady and changing input together; in any single scenario the simpler rule may be luckier."""
    scenarios = [steady("8B-H200-measured", curve, load, 25.0, 5.0) for curve in CURVES for load in (64,)]
    scenarios += [shifted("8B-H200-measured", 32, "HumanEval", "low", "SPEED-Bench")]
    whole, small = (
        [log(ratio) for scenario in scenarios for ratio in served(scenario, 0, rule)[0]]
        for rule in (WholeRule, SmallRule)
    )
    assert sum(whole) > sum(small)
    assert min(whole) > min(small)


@pytest.mark.parametrize(
    ("cost", "load", "least"), [("20B-B200", 64, 1.04), ("30B-A3B-H200", 8, 1.00), ("8B-H200-measured", 32, 1.02)]
)
def test_drafts_shared_out_by_request_beat_the_best_single_k_on_mixed_traffic(
    cost: str, load: int, least: float
) -> None:
    """Uses only each request's own hits and misses, as on a GPU; if the deepest K is best for all, nothing is shared.

    A single seed says little: for 30B-A3B-H200 at 8 requests results are between .99 and 1.04.
    """
    ratios = [served(mixed(cost, "HumanEval", load), seed, WholeRule)[0][0] for seed in range(3)]
    assert fmean(ratios) >= least


def test_sharing_costs_nothing_where_requests_are_alike() -> None:
    (ratio,), _ = served(steady("20B-B200", "MT-Bench", 64, 20.0, 8.0, spread=0.0, by_request=True), 0, WholeRule)
    assert ratio >= 0.98


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("cost", COSTS)
def test_no_rung_is_a_trap(cost: str, curve: str) -> None:
    """From any starting K, at any batch size, although the neighbours of a rung may be equal or worse."""
    settings = settings_of(replica_of(cost, curve, 1))
    ranges = batch_ranges(BATCH_MAX)
    times = [
        StepTime(one.at, k, 200, 200 * COSTS[cost](one.at, one.at * (k + 1), one.at if k else 0))
        for one in ranges
        for k in DEPTHS
    ]
    survival = tuple(accumulate(CURVES[curve], mul))
    tokens = list(accumulate(survival, initial=1.0))
    state = calibrate(start(settings), tuple(times), settings, 0.0)
    reached = (1.0, *survival[:-1])
    counts = replace(state.acceptance.counts, at_risk=tuple(4000.0 * x for x in reached))
    counts = replace(counts, survived=tuple(4000.0 * x for x in survival))
    state = replace(state, acceptance=replace(state.acceptance, counts=counts))
    forecast = state.forecast(settings, 0.0)
    for index, one in enumerate(ranges):
        rates = {k: tokens[k] / COSTS[cost](one.at, one.at * (k + 1), one.at if k else 0) for k in DEPTHS}
        for present in DEPTHS:
            wished = wish(forecast, index, present)
            assert rates[wished.depth if wished else present] >= 0.95 * max(rates.values()), (one, present)


@pytest.mark.parametrize("cost", ["8B-H200-measured", "30B-A3B-B200"])
def test_a_trial_ends_where_every_step_has_prompts(cost: str) -> None:
    """From K = 0 only steps without prompts would show drafts, and short answers at batch 64 have no such steps."""
    scenario = steady(cost, "MT-Bench", 64, output_tokens=24, prompt_tokens=500)
    (ratio,), _ = served(scenario, 2, WholeRule)
    assert ratio >= 0.97
