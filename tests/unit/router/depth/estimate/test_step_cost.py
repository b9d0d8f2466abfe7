"""The step-cost model learns a machine that its prior does not match, and predicts unmeasured cells."""

import random
from collections.abc import Callable, Iterable
from math import exp, sin

import pytest

from peagle.router.depth.estimate.step_cost import Load, StepCost, calibrated, observe
from peagle.router.depth.ladder import batch_ranges, range_index
from peagle.router.depth.priors import DEVICES, EMBEDDED_CPU, TARGETS, CostPrior, roofline_prior
from peagle.router.snapshot import StepCell, StepTime
from support.depth.depth_reports import QUICK_CPU

BATCH_MAX = 32
DEPTHS = (0, 1, 2, 3, 5, 7)
Truth = Callable[[int, int], float]


def slower_machine(batch_size: int, depth: int) -> float:
    """Twice as slow as the prior predicts, and more expensive per token."""
    draft_s = 3.5e-3 + 0.3e-3 * batch_size if depth else 0.0
    return 1.0e-3 + 0.3e-3 * batch_size + draft_s + max(4.4e-3, 0.4e-3 * batch_size * (depth + 1))


def cell(batch_size: int, depth: int, seconds: float, steps: int = 100) -> StepCell:
    drafted = (steps * batch_size,) * depth + (0,) * (7 - depth)
    none = (0,) * 7
    drafts = steps * batch_size if depth else 0
    return StepCell(batch_size, depth, steps, seconds * steps, steps * batch_size, drafts, drafted, none, none, none)


def learn(state: StepCost, seen: Iterable[tuple[int, int]], truth: Truth, start_s: float = 0.0) -> StepCost:
    rng = random.Random(0)
    for report, (batch_size, depth) in enumerate(seen):
        seconds = truth(batch_size, depth) * rng.gauss(1.0, 0.02)
        state = observe(state, [cell(batch_size, depth, seconds)], BATCH_MAX, True, start_s + report * 0.5)
    return state


def predicted(state: StepCost, batch_size: int, depth: int) -> float:
    load = Load(batch_size, batch_size * (depth + 1), batch_size if depth else 0)
    return exp(state.log_step_s(state.coefficients, load, (range_index(batch_size, BATCH_MAX), depth)))


@pytest.mark.parametrize(
    ("batch_size", "depth", "measured_ms"),
    [
        (1, 0, 6.8), (1, 1, 10.9), (1, 7, 12.6), (2, 0, 8.2), (2, 7, 14.7), (4, 0, 7.8), (4, 1, 11.7), (4, 7, 19.3),
        (8, 0, 11.2), (8, 1, 16.2), (8, 3, 19.2), (8, 7, 29.9), (16, 0, 13.2), (16, 1, 21.7), (16, 3, 30.5),
        (16, 7, 52.1), (32, 0, 27.6), (32, 1, 39.6), (32, 3, 64.1), (32, 7, 96.8),
    ],
)  # fmt: skip
def test_the_cpu_prior_has_the_shape_that_was_measured(batch_size: int, depth: int, measured_ms: float) -> None:
    """Of the embedded model, as calibration timed it; the drift corrects a common factor on another core."""
    guess = predicted(StepCost.start(EMBEDDED_CPU), batch_size, depth)
    assert guess == pytest.approx(1e-3 * measured_ms, rel=0.2)


def timed(truth: Truth) -> tuple[StepTime, ...]:
    rng = random.Random(0)
    return tuple(
        StepTime(batches.at, depth, 10, 10 * truth(batches.at, depth) * rng.gauss(1.0, 0.05))
        for batches in batch_ranges(BATCH_MAX)
        for depth in DEPTHS
    )


@pytest.mark.parametrize("prior", [QUICK_CPU, roofline_prior(TARGETS["gemma-4-31b"], DEVICES["B200"])])
def test_calibration_makes_any_machine_known_whatever_the_prior_was_of(prior: CostPrior) -> None:
    times = timed(slower_machine)
    state = calibrated(StepCost.start(prior), times, BATCH_MAX, True, 0.0)
    assert all(state.measured((range_index(each.batch_size, BATCH_MAX), each.depth)) for each in times)
    errors = [
        abs(predicted(state, each.batch_size, each.depth) / slower_machine(each.batch_size, each.depth) - 1.0)
        for each in times
    ]
    # No more than the scatter of the timed steps.
    assert sum(errors) / len(errors) < 0.05
    assert max(errors) < 4 * 0.05
    assert state.steps == 0, "these steps served no client"


@pytest.mark.parametrize("batch_size", [8, 32])
@pytest.mark.parametrize("seen", [0, 7])
def test_what_serving_takes_beyond_calibration_is_learned_for_every_depth_from_one(batch_size: int, seen: int) -> None:
    """Steps of client requests take longer: contexts are longer, and the machine does more."""

    def serving(batch: int, depth: int) -> float:
        return 1.3 * slower_machine(batch, depth)

    state = calibrated(StepCost.start(QUICK_CPU), timed(slower_machine), BATCH_MAX, True, 0.0)
    assert predicted(state, batch_size, 3) < 0.85 * serving(batch_size, 3)
    state = learn(state, [(batch_size, seen)] * 40, serving)
    found = [predicted(state, batch_size, depth) / serving(batch_size, depth) for depth in (0, 3, 7)]
    assert found == pytest.approx([1.0] * 3, abs=0.13)


def test_fleet_knowledge_stays_at_uncalibrated_points() -> None:
    fleet = learn(StepCost.start(QUICK_CPU), [(32, 7)] * 20, lambda b, k: 1.4 * slower_machine(b, k))
    known = predicted(fleet, 32, 7)
    few = tuple(each for each in timed(lambda b, k: 1.4 * slower_machine(b, k)) if each.batch_size == 1)
    state = calibrated(fleet, few, BATCH_MAX, True, 10.0)
    assert state.measured((range_index(32, BATCH_MAX), 7))
    assert predicted(state, 32, 7) == pytest.approx(known, rel=0.2)


def test_calibration_that_found_nothing_changes_nothing() -> None:
    fresh = StepCost.start(QUICK_CPU)
    assert calibrated(fresh, (), BATCH_MAX, True, 0.0) == fresh
    assert calibrated(fresh, (StepTime(1, 7, 0, 0.0),), BATCH_MAX, True, 0.0) == fresh


def test_measured_cells_are_known_within_a_few_percent() -> None:
    seen = [(batch, depth) for batch in (1, 4, 8) for depth in (0, 3, 7)] * 4
    state = learn(StepCost.start(QUICK_CPU), seen, slower_machine)
    for batch_size, depth in seen:
        assert predicted(state, batch_size, depth) == pytest.approx(slower_machine(batch_size, depth), rel=0.04)


def test_cells_never_seen_follow_from_those_that_were() -> None:
    seen = [(batch, depth) for batch in (1, 4, 8) for depth in (0, 3, 7)] * 4
    before = StepCost.start(QUICK_CPU)
    state = learn(before, seen, slower_machine)
    for batch_size, depth in ((2, 5), (6, 2), (12, 0), (16, 3), (16, 7)):
        truth = slower_machine(batch_size, depth)
        assert predicted(state, batch_size, depth) == pytest.approx(truth, rel=0.15)
        assert abs(predicted(before, batch_size, depth) / truth - 1) > 0.3


def test_a_machine_that_slows_down_leaves_the_comparison_of_depths_alone() -> None:
    """K = 7 was measured while the machine was fast, and only K = 0 since it has become slow."""
    state = learn(StepCost.start(QUICK_CPU), [(4, 0), (4, 7)] * 20, slower_machine)
    ratio = predicted(state, 4, 7) / predicted(state, 4, 0)
    state = learn(state, [(4, 0)] * 20, lambda b, k: 1.7 * slower_machine(b, k), start_s=20.0)
    assert predicted(state, 4, 0) == pytest.approx(1.7 * slower_machine(4, 0), rel=0.03)
    assert predicted(state, 4, 7) / predicted(state, 4, 0) == pytest.approx(ratio, rel=0.05)


def test_it_follows_a_machine_whose_speed_varies() -> None:
    state, errors = StepCost.start(QUICK_CPU), []
    for report in range(120):
        truth = slower_machine(4, 3) * (1.0 + 0.3 * sin(report / 20.0))
        if report > 10:
            errors.append(abs(predicted(state, 4, 3) / truth - 1))
        state = observe(state, [cell(4, 3, truth)], BATCH_MAX, True, report * 0.5)
    assert max(errors) < 0.04


def test_one_hiccup_is_forgotten() -> None:
    state = learn(StepCost.start(QUICK_CPU), [(4, 3)] * 20, slower_machine)
    state = observe(state, [cell(4, 3, 20 * slower_machine(4, 3))], BATCH_MAX, True, 10.5)
    state = learn(state, [(4, 3)] * 2, slower_machine, start_s=11.0)
    assert predicted(state, 4, 3) == pytest.approx(slower_machine(4, 3), rel=0.05)


def test_a_cell_whose_drafts_fell_short_does_not_count_as_its_depth() -> None:
    """Requests with a gap in the drafter's cache do not draft: at K = 7 such a step is almost one at K = 0."""
    state = learn(StepCost.start(QUICK_CPU), [(8, 0), (8, 7)] * 10, slower_machine)
    before = predicted(state, 8, 7)
    short = StepCell(8, 7, 100, 100 * slower_machine(8, 0), 800, 10, (10,) * 7, (5,) * 7, (0,) * 7, (0,) * 7)
    state = observe(state, [short], BATCH_MAX, True, 20.0)
    assert predicted(state, 8, 7) == pytest.approx(before, rel=0.1)


def test_experts_make_a_middle_batch_the_dearest_to_draft_for() -> None:
    """With experts the cost of a draft peaks where some are still inactive, so it is not monotone in load."""
    prior = roofline_prior(TARGETS["gpt-oss-120b"], DEVICES["H200"])
    state = StepCost.start(prior)
    price = [predicted(state, batch, 3) / predicted(state, batch, 0) for batch in (1, 4, 8, 32)]
    assert price[1] > price[3]
    assert isinstance(prior, CostPrior)


def test_the_roofline_gives_published_step_times() -> None:
    """GPT-OSS 20B on a B200: single-digit milliseconds, memory-bound, mostly for the experts."""
    state = StepCost.start(roofline_prior(TARGETS["gpt-oss-20b"], DEVICES["B200"]))
    assert 2e-3 < predicted(state, 1, 0) < 4e-3
    assert predicted(state, 1, 0) < predicted(state, 1, 7) < 2.5 * predicted(state, 1, 0)
