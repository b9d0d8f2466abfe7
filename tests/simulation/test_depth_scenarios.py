"""The depth rule over measured and published step times and curves, and the small rule that it has to beat."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import exp, log
from operator import mul

import pytest

from peagle.router.depth import DepthPlan, DepthSettings, Mode, batch_ranges, start, step
from peagle.router.depth.estimate.acceptance import Acceptance, counts_of
from peagle.router.depth.ladder import range_index
from peagle.router.depth.rule.choice import wish
from peagle.router.depth.rule.state import calibrate
from peagle.router.snapshot import DepthTable, StepReport, StepTime
from support.depth_scenarios import (
    BATCH_MAX,
    LOADS,
    Scenario,
    Served,
    phased,
    served,
    settings_of,
)
from support.step_costs import COSTS, CURVES, DEPTHS


class WholeRule:
    """The rule as it is deployed."""

    def __init__(self, settings: DepthSettings) -> None:
        self.settings, self.state = settings, start(settings)

    def step(self, report: StepReport, now_s: float) -> DepthPlan:
        self.state, plan = step(self.state, report, self.settings, now_s)
        return plan


class SmallRule:
    """The argmax of estimated goodput, with forgetting and a little exploration."""

    def __init__(self, settings: DepthSettings) -> None:
        self.settings, self.acceptance, self.tried_s = settings, Acceptance.start(settings.acceptance), 0.0
        self.ranges, self.step_s = batch_ranges(settings.batch_max), dict[tuple[int, int], float]()
        self.depths = [settings.depth_static] * len(self.ranges)

    def step(self, report: StepReport, now_s: float) -> DepthPlan:
        batch_max, table = self.settings.batch_max, report.added.table
        if not self.step_s:
            at = [(range_index(each.batch_size, batch_max), each) for each in report.calibration]
            self.step_s = {(index, each.depth): each.seconds / each.steps for index, each in at}
        cells = [cell for cell in report.added.cells if cell.steps]
        added = counts_of(cells, len(self.acceptance.survival))
        kept = self.acceptance.counts.scaled(0.5 ** (added.drafts / 600.0))
        self.acceptance = replace(self.acceptance, counts=kept + added)
        for cell in cells:
            if cell.reached:
                key = range_index(cell.batch_size, batch_max), cell.depth
                error = 0.3 * log(cell.seconds / cell.steps / self.step_s[key]) * cell.steps / (cell.steps + 10)
                self.step_s = {k: s * exp(error if k == key else 0.7 * error) for k, s in self.step_s.items()}
        tokens = list(accumulate(self.acceptance.survival, initial=1.0))
        rates = [{k: tokens[k] / self.step_s[index, k] for k in DEPTHS} for index in range(len(self.ranges))]
        for index, rate in enumerate(rates):
            best = max(rate, key=rate.__getitem__)
            self.depths[index] = best if rate[best] > 1.02 * rate[self.depths[index]] else self.depths[index]
        depths = list(self.depths)
        if cells and now_s - self.tried_s > 20.0:
            main, self.tried_s = range_index(max(cells, key=lambda cell: cell.seconds).batch_size, batch_max), now_s
            depths[main] = max(set(DEPTHS[1:]) - {depths[main]}, key=rates[main].__getitem__)
        spread = [k for one, k in zip(self.ranges, depths, strict=True) for _ in range(one.first, one.last + 1)]
        return DepthPlan(DepthTable(table.version + 1, (depths[0], *spread)), Mode.ADAPTIVE, "")


def steady(cost: str, curve: str, load: int, seconds: float = 30.0, from_s: float = 10.0) -> Scenario:
    def replica(seed: int) -> Served:
        return Served(COSTS[cost], lambda _: CURVES[curve], lambda _: load, seed=seed)

    return Scenario(f"{cost} {curve} {load}", replica, seconds, from_s)


def shifted(cost: str, load: int, *curves: str) -> Scenario:
    """Acceptance changes every 10 s; what is compared is from 3 s after each change on."""
    parts = [10.0 * (number + 1) for number in range(len(curves))]

    def replica(seed: int) -> Served:
        curve = phased(*zip(parts, (CURVES[name] for name in curves), strict=True))
        return Served(COSTS[cost], curve, lambda _: load, skips=False, tails=True, seed=seed)

    bounds = [bound for part in parts[:-1] for bound in (part, part + 3.0)]
    return Scenario(f"{cost} {'>'.join(curves)} {load}", replica, parts[-1], 4.0, parts=tuple(bounds))


def mixed(cost: str, curve: str, load: int, by_request: bool, seconds: float = 20.0, from_s: float = 8.0) -> Scenario:
    """Every second request's drafts are right half as often at each position."""

    def replica(seed: int) -> Served:
        return Served(
            COSTS[cost],
            lambda _: CURVES[curve],
            lambda _: load,
            spread=0.2,
            mixed=True,
            by_request=by_request,
            seed=seed,
        )

    return Scenario(f"{cost} {curve} {load} mixed", replica, seconds, from_s)


def sweep(
    rule: Callable[[DepthSettings], WholeRule | SmallRule] = WholeRule, seeds: int = 3
) -> dict[tuple[str, str, int], list[float]]:
    """Return rule over best single K for every cost, curve and load, by seed; takes some minutes, so no test calls it.

    Run it by `python -c "from simulation.test_depth_scenarios import sweep; print(sweep())"` with tests on the path.
    """
    cells = [(cost, curve, load) for cost in COSTS for curve in CURVES for load in LOADS]
    return {cell: [served(steady(*cell), seed, rule)[0][0] for seed in range(seeds)] for cell in cells}


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("cost", ["8B-H200-measured", "20B-B200", "30B-A3B-H200"])
def test_it_reaches_97_percent_of_the_best_single_k_where_one_is_clearly_best(cost: str, curve: str) -> None:
    for seed, load in enumerate((8, 32, 128)):
        (ratio,), _ = served(steady(cost, curve, load), seed, WholeRule)
        # There K = 0, 2 and 3 lie close together, and a slow step in calibration is believed until K = 0 is looked at.
        least = 0.93 if (cost, load) == ("8B-H200-measured", 128) else 0.97
        assert ratio >= least, f"{load} at once"


@pytest.mark.parametrize("load", [4, 32, 128])
def test_it_settles_within_three_seconds_of_a_shift_of_acceptance(load: int) -> None:
    ratios, _ = served(shifted("8B-H200-measured", load, "HumanEval", "low", "SPEED-Bench"), 0, WholeRule)
    assert min(ratios[::2]) >= 0.97


def test_over_all_it_yields_more_than_the_small_rule() -> None:
    """Steady input and shifts together; at each of them alone, the small one may have the better luck."""
    scenarios = [steady("8B-H200-measured", curve, load, 25.0, 5.0) for curve in CURVES for load in (64,)]
    scenarios += [shifted("8B-H200-measured", 32, "HumanEval", "low", "SPEED-Bench")]
    whole, small = (
        [log(ratio) for scenario in scenarios for ratio in served(scenario, 0, rule)[0]]
        for rule in (WholeRule, SmallRule)
    )
    assert sum(whole) > sum(small)
    assert min(whole) > min(small)


@pytest.mark.parametrize(
    ("cost", "load", "least"), [("20B-B200", 64, 1.04), ("30B-A3B-H200", 8, 1.02), ("8B-H200-measured", 32, 1.02)]
)
def test_drafts_shared_out_by_request_beat_the_best_single_k_on_mixed_traffic(
    cost: str, load: int, least: float
) -> None:
    """By each request's own hits and misses alone, as on a GPU; where the deepest K is best for all, nothing is."""
    (ratio,), _ = served(mixed(cost, "HumanEval", load, by_request=True), 0, WholeRule)
    assert ratio >= least


def test_sharing_costs_nothing_where_requests_are_alike() -> None:
    def replica(seed: int) -> Served:
        return Served(COSTS["20B-B200"], lambda _: CURVES["MT-Bench"], lambda _: 64, 0.0, by_request=True, seed=seed)

    (ratio,), _ = served(Scenario("alike", replica, 20.0, 8.0), 0, WholeRule)
    assert ratio >= 0.98


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("cost", COSTS)
def test_no_rung_is_a_trap(cost: str, curve: str) -> None:
    """From whatever K it starts, at whatever batch size: the neighbours of a rung may look alike or worse."""
    replica = Served(COSTS[cost], lambda _: CURVES[curve], lambda _: 1)
    settings = settings_of(replica)
    ranges = batch_ranges(BATCH_MAX)
    times = [StepTime(one.at, k, 200, 200 * COSTS[cost](one.at, k, k > 0)) for one in ranges for k in DEPTHS]
    survival = tuple(accumulate(CURVES[curve], mul))
    tokens = list(accumulate(survival, initial=1.0))
    state = calibrate(start(settings), tuple(times), settings, 0.0)
    reached = (1.0, *survival[:-1])
    counts = replace(state.acceptance.counts, at_risk=tuple(4000.0 * x for x in reached))
    counts = replace(counts, survived=tuple(4000.0 * x for x in survival))
    state = replace(state, acceptance=replace(state.acceptance, counts=counts))
    forecast = state.forecast(settings, 0.0)
    for index, one in enumerate(ranges):
        rates = {k: tokens[k] / COSTS[cost](one.at, k, k > 0) for k in DEPTHS}
        for present in DEPTHS:
            wished = wish(forecast, index, present)
            assert rates[wished.depth if wished else present] >= 0.95 * max(rates.values()), (one, present)
