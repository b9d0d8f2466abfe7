"""A replica's half of the depth loop: it reports to the Router twice a second and applies the returned plans."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from peagle.router.depth import Cause, DepthPlan, Mode, StandingLimits
from peagle.router.snapshot import DepthTable, StepReport, StepStats, StepTime

# A child of Ray Serve's logger, which replicas print from level INFO.
logger = logging.getLogger("ray.serve.depth")

PERIOD_S = 0.5
TIMEOUT_S = 2.0
TRIAL_S = 5.0
"""Seconds without an answer after which a trial of another K is ended; the Router ends every trial sooner."""


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """State of a replica's depth plan.

    Attributes:
        mode: What controls the depths; `static` before any plan.
        reason: Why the depths are what they are.
        age_s: Seconds since the Router last confirmed the plan, or since the first report before that; None without a
            Router.
    """

    mode: str
    reason: str
    age_s: float | None


async def keep_reporting(report: Callable[[], Awaitable[None]], period_s: float = PERIOD_S) -> None:
    """Call `report` every `period_s` until cancelled. Failures are logged: the control path must not stop a token."""
    fails = False
    while True:
        await asyncio.sleep(period_s)
        try:
            await report()
        except Exception as error:
            if not fails:
                logger.warning("A report to the Router failed; the last plan stays in force: %r", error)
            fails = True
        else:
            if fails:
                logger.info("Reports reach the Router again")
            fails = False


class DepthReporter:
    """Reports and applies plans. After any failure, the engine keeps its current depths.

    Args:
        read: Reads the engine's sums.
        apply: Gives the engine a depth table.
        ask: Sends a report, with the operator limits of the current plan, and returns the new plan.
        calibration: Step times measured before the first client; part of every report.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[StepStats]],
        apply: Callable[[DepthTable], Awaitable[None]],
        ask: Callable[[StepReport, StandingLimits | None], Awaitable[DepthPlan]],
        calibration: tuple[StepTime, ...] = (),
        timeout_s: float = TIMEOUT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._apply, self._ask = read, apply, ask
        self._calibration = calibration
        self._timeout_s, self._now_s = timeout_s, now_s
        self._answered: StepStats | None = None
        self._readings = self._answered_reading = 0
        self._plan: DepthPlan | None = None
        self._plan_at_s = now_s()
        self._changes: Counter[str] = Counter()

    @property
    def status(self) -> PlanStatus:
        age_s = self._now_s() - self._plan_at_s
        if self._plan is None:
            return PlanStatus("static", "no plan has arrived yet; the configured depths apply", age_s)
        return PlanStatus(self._plan.mode.value, self._plan.reason, age_s)

    @property
    def changes(self) -> dict[str, int]:
        """Return the number of changes of K by cause, with zeros, because a rate ignores a series' first value."""
        return {cause.value: self._changes[cause.value] for cause in Cause}

    async def leave_out(self) -> None:
        """Read the sums so that the next report excludes them."""
        self._answered = await self._read()

    async def report(self) -> None:
        """Report once. An unanswered report's contents are part of the next one."""
        stats = await self._read()
        if await self._end_trial(stats.table):
            stats = await self._read()  # the Router needs to know the table that is now in force
        self._readings += 1
        reading = self._readings
        added = stats.since(self._answered) if self._answered is not None else stats
        untried = self._plan.untried if self._plan is not None else None
        report = StepReport(added, reading, self._answered_reading, untried, self._calibration)
        standing = self._plan.standing if self._plan is not None else None
        async with asyncio.timeout(self._timeout_s):
            plan = await self._ask(report, standing)
        self._answered, self._answered_reading = stats, reading
        # First, because no later plan repeats them: a table that cannot be applied now comes with the next plan.
        for change in plan.changes:
            logger.info("Depth table %d: %s", plan.table.version, change)
            self._changes[change.cause.value] += 1
        if plan.table.version > stats.table.version:
            await self._apply(plan.table)
        self._plan, self._plan_at_s = plan, self._now_s()

    async def _end_trial(self, applied: DepthTable) -> bool:
        """End a trial of another K that the Router no longer judges; return whether there was one."""
        plan = self._plan
        if plan is None or plan.untried is None or self._now_s() - self._plan_at_s < TRIAL_S:
            return False
        table = DepthTable(applied.version + 1, plan.untried, plan.table.by_request)
        await self._apply(table)
        logger.info("Depth table %d: the trial of another K was ended without the Router", table.version)
        self._plan = replace(
            plan, table=table, mode=Mode.ADAPTIVE, reason="as before a trial that the Router did not end", untried=None
        )
        return True
