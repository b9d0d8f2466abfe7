"""Runs a depth rule with a simulated replica, which reports twice a second."""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Generic, Protocol, TypeVar

from peagle.router.depth import DepthPlan, DepthSettings, batch_ranges, start, step
from peagle.router.snapshot import StepReport
from peagle.simulator.depth_replica import Replica

REPORT_S = 0.5


class Rule(Protocol):
    """Decides the depth of one replica."""

    def step(self, report: StepReport, now_s: float) -> DepthPlan: ...


class WholeRule:
    """The depth rule as it is deployed."""

    def __init__(self, settings: DepthSettings) -> None:
        self.settings, self.state = settings, start(settings)

    def step(self, report: StepReport, now_s: float) -> DepthPlan:
        self.state, plan = step(self.state, report, self.settings, now_s)
        return plan


R = TypeVar("R", bound=Rule)


@dataclass
class Loop(Generic[R]):
    """A replica and its depth rule.

    Attributes:
        replica: The simulated replica.
        rule: Its depth rule.
        calibrated: Largest batch size that was timed at each K before serving; 0 for none.
    """

    replica: Replica
    rule: R
    calibrated: int = 0
    plans: list[tuple[float, DepthPlan]] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = [batches.at for batches in batch_ranges(self.calibrated)] if self.calibrated else ()
        self._calibration = tuple(self.replica.timed(*point) for point in product(sizes, self.replica.depths))

    def run(self, until_s: float) -> "Loop[R]":
        while self.replica.now_s < until_s:
            report = self.replica.run(min(until_s, self.replica.now_s + REPORT_S))
            plan = self.rule.step(replace(report, calibration=self._calibration), self.replica.now_s)
            self.plans.append((self.replica.now_s, plan))
            self.replica.apply(plan.table)
        return self

    def tokens_per_s(self, from_s: float, until_s: float) -> float:
        """Run on from `from_s`, the loop's current time, and measure the throughput."""
        assert abs(self.replica.now_s - from_s) < REPORT_S
        before, started_s = self.replica.tokens, self.replica.now_s
        self.run(until_s)
        return (self.replica.tokens - before) / (self.replica.now_s - started_s)

    def depths_used(self, from_s: float, until_s: float) -> list[int]:
        """Return the K of every step in a period."""
        return [depth for now_s, _, depth in self.replica.used if from_s <= now_s < until_s]

    def changes(self, from_s: float, until_s: float) -> int:
        """Return how often K changed between two steps of the same batch size."""
        last: dict[int, int] = {}
        count = 0
        for now_s, batch_size, depth in self.replica.used:
            if from_s <= now_s < until_s and last.get(batch_size, depth) != depth:
                count += 1
            last[batch_size] = depth
        return count
