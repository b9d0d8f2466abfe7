"""What depth rules are compared over: replicas of measured and published step times, and the rule that is the bar."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import exp, log
from typing import Any

from peagle.router.depth import AcceptancePrior, CostPrior, DepthPlan, DepthSettings, Mode, batch_ranges
from peagle.router.depth.estimate.acceptance import Acceptance, counts_of
from peagle.router.depth.ladder import range_index
from peagle.router.snapshot import DepthTable, StepReport
from peagle.simulator.depth_loop import Loop, R
from peagle.simulator.depth_replica import Replica
from support.depth.step_costs import COSTS, CURVES, DEPTH_MAX, DEPTHS

BATCH_MAX = 128

# A prior of another machine and another model: learned values must not depend on it.
PRIOR = CostPrior(
    step_s=1.6e-3, weights_s=2.0e-3, sequence_s=10e-6, token_s=8e-6, draft_s=1.5e-3, experts_s=3.0e-3, experts=32,
    experts_active=4,
)  # fmt: skip


def replica_of(
    cost: str, curve: str | Callable[[float], Any], load: int | Callable[[float], int], **more: Any
) -> Replica:
    """A replica on a GPU, whose requests differ and whose drafter is skipped at K = 0."""
    options = {
        "skips": True,
        "tails": False,
        "output_tokens": 300,
        "spread": 0.3,
        "step_sd": 0.05,
        "stalls_ratio": 0.01,
        **more,
    }
    conditional = curve if callable(curve) else lambda _: CURVES[curve]
    return Replica(conditional, load if callable(load) else lambda _: load, COSTS[cost], prompt_token_s=2e-5, **options)


def settings_of(replica: Replica) -> DepthSettings:
    return DepthSettings(
        depth_max=DEPTH_MAX,
        depth_static=DEPTH_MAX,
        batch_max=BATCH_MAX,
        cost=PRIOR,
        acceptance=AcceptancePrior.geometric(DEPTH_MAX),
        drafter_skipped_at_zero=replica.skips,
        by_request=replica.by_request,
    )


@dataclass(frozen=True)
class Scenario:
    """A replica, by seed, to be served for `seconds`; what is compared is what it yields from `from_s` on.

    Attributes:
        calibrated: Whether its steps were timed before.
        parts: Where the input changes: each part is compared with its own best static K.
    """

    name: str
    replica: Callable[[int], Replica]
    seconds: float = 20.0
    from_s: float = 4.0
    calibrated: bool = True
    parts: tuple[float, ...] = ()


def served(scenario: Scenario, seed: int, rule: Callable[[DepthSettings], R]) -> tuple[list[float], Loop[R]]:
    """Run it; return the yield of each part over that of the part's best static K."""
    replica = scenario.replica(seed)
    loop = Loop(replica, rule(settings_of(replica)), BATCH_MAX if scenario.calibrated else 0)
    loop.run(scenario.from_s)
    ratios = []
    for until_s in (*scenario.parts, scenario.seconds):
        spent_s, static_s = replica.spent_s, replica.static_s.copy()
        loop.run(until_s)
        ratios.append(float((replica.static_s - static_s).min() / (replica.spent_s - spent_s)))
    return ratios, loop


def phased(*phases: tuple[float, Any]) -> Callable[[float], Any]:
    """Return the value at a time, from pairs of end time and value."""
    return lambda now_s: next((what for until_s, what in phases if now_s < until_s), phases[-1][1])


def steady(cost: str, curve: str, load: int, seconds: float = 30.0, from_s: float = 10.0, **more: Any) -> Scenario:
    return Scenario(
        f"{cost} {curve} {load}", lambda seed: replica_of(cost, curve, load, seed=seed, **more), seconds, from_s
    )


def shifted(cost: str, load: int, *curves: str, each_s: float = 10.0, **more: Any) -> Scenario:
    """Acceptance changes every 10 s; yields are compared from 3 s after each change."""
    ends = [each_s * (number + 1) for number in range(len(curves))]
    options = {"skips": False, "tails": True, **more}

    def replica(seed: int) -> Replica:
        curve = phased(*zip(ends, (CURVES[name] for name in curves), strict=True))
        return replica_of(cost, curve, load, seed=seed, **options)

    bounds = [bound for end in ends[:-1] for bound in (end, end + 3.0)]
    return Scenario(f"{cost} {'>'.join(curves)} {load}", replica, ends[-1], 4.0, parts=tuple(bounds))


def mixed(cost: str, curve: str, load: int) -> Scenario:
    """Every second request's acceptance is 0.4 times as high at each position."""
    kind = {"spread": 0.2, "mixed": True, "by_request": True}
    return replace(steady(cost, curve, load, 20.0, 8.0, **kind), name=f"{cost} {curve} {load} mixed")


class SmallRule:
    """The reference: the argmax of estimated goodput, with forgetting and a little exploration."""

    def __init__(self, settings: DepthSettings) -> None:
        self.settings, self.acceptance, self.tried_s = settings, Acceptance.start(settings.acceptance), 0.0
        self.ranges, self.step_s = batch_ranges(settings.batch_max), dict[tuple[int, int], float]()
        self.depths = [settings.depth_static] * len(self.ranges)

    def step(self, report: StepReport, now_s: float) -> DepthPlan:
        batch_max, table = self.settings.batch_max, report.added.table
        if not self.step_s:
            at = [(range_index(each.batch_size, batch_max), each) for each in report.calibration]
            self.step_s = {
                (index, k): self._guess(each.at, k) for index, each in enumerate(self.ranges) for k in DEPTHS
            }
            self.step_s |= {(index, each.depth): each.seconds / each.steps for index, each in at}
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

    def _guess(self, batch_size: int, depth: int) -> float:
        cost = self.settings.cost
        return cost.seconds(cost.coefficients, batch_size, batch_size * (depth + 1), batch_size if depth else 0)
