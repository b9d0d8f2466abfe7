"""A replica's half of the depth loop: nothing is counted twice or lost, and no failure reaches the engine."""

import asyncio
from dataclasses import dataclass, field

import pytest

from peagle.errors import OverloadedError
from peagle.router.depth import Cause, DepthLimits, DepthPlan, Mode, ModelDepths, StandingLimits
from peagle.router.snapshot import DepthTable, StepReport, StepStats, StepTime
from peagle.serve.reporting import TRIAL_S, DepthReporter, keep_reporting
from support.depth.depth_reports import SETTINGS, good_cell
from support.virtual_time import in_virtual_time
from support.waiting import until


@dataclass
class Engine:
    """An engine's sums, which grow by 100 steps per reading, and a Router that can be lost."""

    table: DepthTable = field(default_factory=lambda: DepthTable(0, (5,)))
    steps: int = 0
    router: ModelDepths | None = field(default_factory=lambda: ModelDepths(SETTINGS))
    reported: list[int] = field(default_factory=list)
    now_s: float = 0.0
    late: bool = False

    async def read(self) -> StepStats:
        self.steps += 100
        self.now_s += 0.5
        return StepStats(self.table, 7, (good_cell(steps=self.steps, seconds=self.steps * 5e-3),))

    async def apply(self, table: DepthTable) -> None:
        assert table.version > self.table.version
        self.table = table

    async def ask(self, report: StepReport, standing: StandingLimits | None) -> DepthPlan:
        if self.router is None:
            raise OverloadedError("gone", retry_after_s=1.0)
        self.reported.append(sum(cell.steps for cell in report.added.cells))
        plan = self.router.report("a", report, self.now_s, standing)
        if self.late:
            raise TimeoutError
        return plan

    def reporter(self, **options: float) -> DepthReporter:
        return DepthReporter(self.read, self.apply, self.ask, now_s=lambda: self.now_s, **options)


async def test_each_step_is_reported_once_and_the_plan_is_applied() -> None:
    engine = Engine()
    reporter = engine.reporter()
    assert (reporter.status.mode, reporter.status.age_s) == ("static", 0.0)
    for _ in range(12):
        await reporter.report()
    assert engine.reported == [100] * 12
    assert reporter.status.mode in (Mode.ADAPTIVE, Mode.PROBING)
    assert reporter.status.age_s == 0.0
    assert engine.table.version > 0


@in_virtual_time
async def test_steps_of_a_report_that_was_not_answered_are_in_the_next() -> None:
    engine = Engine()
    reporter = engine.reporter()
    await reporter.report()
    router, engine.router = engine.router, None
    held = engine.table
    running = asyncio.create_task(keep_reporting(reporter.report, period_s=0.001))
    await until(lambda: engine.steps >= 500)
    assert engine.table == held
    assert reporter.status.age_s is not None
    assert reporter.status.age_s >= 1.5
    engine.router = router
    await until(lambda: len(engine.reported) >= 2)
    running.cancel()
    assert engine.reported[1] >= 400
    assert sum(engine.reported) <= engine.steps


async def test_steps_that_are_left_out_are_never_told_and_all_later_ones_are() -> None:
    engine = Engine()
    reporter = engine.reporter()
    for _ in range(2):
        await reporter.report()
    await reporter.leave_out()
    told = len(engine.reported)
    for _ in range(3):
        await reporter.report()
    assert engine.reported[told:] == [100] * 3


async def test_every_report_has_what_was_timed_before_the_first_request() -> None:
    engine = Engine()
    times = (StepTime(1, 7, 20, 0.1), StepTime(1, 0, 20, 0.06))
    told: list[tuple[StepTime, ...]] = []

    async def ask(report: StepReport, standing: StandingLimits | None) -> DepthPlan:
        told.append(report.calibration)
        return await engine.ask(report, standing)

    reporter = DepthReporter(engine.read, engine.apply, ask, times)
    for _ in range(2):
        await reporter.report()
    assert told == [times, times]


@in_virtual_time
async def test_a_router_that_never_answers_is_given_up_each_time() -> None:
    engine = Engine()

    async def never(_report: StepReport, _standing: StandingLimits | None) -> DepthPlan:
        await asyncio.Event().wait()
        raise AssertionError

    reporter = DepthReporter(engine.read, engine.apply, never, timeout_s=0.01)
    running = asyncio.create_task(keep_reporting(reporter.report, period_s=0.001))
    await until(lambda: engine.steps >= 300)
    assert not running.done()
    running.cancel()
    assert engine.table.version == 0


async def test_a_router_that_comes_back_empty_goes_on_from_the_replicas_table() -> None:
    engine = Engine(table=DepthTable(41, (3,)))
    reporter = engine.reporter()
    await reporter.report()
    assert engine.table.version >= 41
    engine.router = ModelDepths(SETTINGS)
    await reporter.report()
    assert set(engine.table.depths) == {3}


async def test_a_change_is_counted_once_though_its_table_could_not_be_applied_at_first() -> None:
    engine = Engine()
    failures = iter([TimeoutError])

    async def apply(table: DepthTable) -> None:
        for error in failures:
            raise error
        await engine.apply(table)

    reporter = DepthReporter(engine.read, apply, engine.ask, now_s=lambda: engine.now_s)
    assert engine.router is not None
    engine.router.limit(DepthLimits(pin=0))
    with pytest.raises(TimeoutError):
        await reporter.report()
    await reporter.report()
    assert set(engine.table.depths) == {0}
    assert reporter.changes == dict.fromkeys(Cause, 0) | {"pin": 1}


async def test_what_a_late_answer_was_given_for_is_learned_once() -> None:
    engine = Engine()
    reporter = engine.reporter()
    await reporter.report()
    engine.late = True
    for _ in range(8):
        with pytest.raises(TimeoutError):
            await reporter.report()
    engine.late = False
    await reporter.report()
    await reporter.report()
    assert engine.router is not None
    seen = engine.router.view("a", engine.now_s)
    assert seen is not None
    # The first two readings and the last: repeated readings are excluded.
    assert seen.evidence_drafts <= 300 + SETTINGS.acceptance.drafts


async def test_what_operators_decided_outlives_the_router() -> None:
    engine = Engine()
    reporter = engine.reporter()
    await reporter.report()
    assert engine.router is not None
    engine.router.limit(DepthLimits(pin=0), "a")
    await reporter.report()
    assert set(engine.table.depths) == {0}
    engine.router = ModelDepths(SETTINGS)
    for _ in range(12):
        await reporter.report()
    assert set(engine.table.depths) == {0}
    assert engine.router.limits_of("a") == DepthLimits(pin=0)


async def test_what_was_decided_since_a_router_came_back_wins_over_what_held_before() -> None:
    engine = Engine()
    reporter = engine.reporter()
    assert engine.router is not None
    engine.router.limit(DepthLimits(pin=0))
    await reporter.report()
    engine.router = ModelDepths(SETTINGS)
    engine.router.limit(DepthLimits(floor=3))
    await reporter.report()
    assert engine.router.limits_of("a") == DepthLimits(floor=3)
    engine.router.limit(None)
    await reporter.report()
    engine.router = ModelDepths(SETTINGS)
    await reporter.report()
    assert engine.router.limits_of("a") == DepthLimits()


@in_virtual_time
async def test_reporting_ends_when_it_is_cancelled_in_the_very_turn_in_which_an_answer_comes() -> None:
    engine = Engine()
    reporting: asyncio.Task[None]

    async def ask(report: StepReport, standing: StandingLimits | None) -> DepthPlan:
        reporting.cancel()
        return await engine.ask(report, standing)

    reporter = DepthReporter(engine.read, engine.apply, ask)
    reporting = asyncio.create_task(keep_reporting(reporter.report, period_s=0.001))
    done, _ = await asyncio.wait([reporting], timeout=5.0)
    assert done
    assert reporting.cancelled()


async def test_a_k_that_was_only_tried_does_not_outlive_the_router() -> None:
    engine = Engine(table=DepthTable(4, (3, 3, 3)))
    tried = DepthPlan(DepthTable(5, (3, 3, 6)), Mode.PROBING, "trying K = 6", untried=(3, 3, 3))
    answers = iter([tried])

    told: list[tuple[int, ...] | None] = []

    async def ask(report: StepReport, _standing: StandingLimits | None) -> DepthPlan:
        told.append(report.untried)
        for answer in answers:
            return answer
        raise TimeoutError

    reporter = DepthReporter(engine.read, engine.apply, ask, now_s=lambda: engine.now_s)
    await reporter.report()
    assert engine.table == tried.table
    for late_s, held in (
        (TRIAL_S - 1.0, tried.table),
        (2.0, DepthTable(6, (3, 3, 3))),
        (9.0, DepthTable(6, (3, 3, 3))),
    ):
        engine.now_s += late_s
        with pytest.raises(TimeoutError):
            await reporter.report()
        assert engine.table == held
    assert reporter.status.mode == Mode.ADAPTIVE
    assert reporter.status.age_s is not None
    assert reporter.status.age_s > TRIAL_S, "it still tells how long the Router has been silent"
    assert told == [None, tried.untried, None, None], "a Router that comes back meanwhile hears that it was a trial"


async def test_a_router_that_comes_back_as_a_trial_ends_does_not_take_it_for_its_plan() -> None:
    engine = Engine(table=DepthTable(4, (3,)))
    tried = DepthPlan(DepthTable(5, (6,)), Mode.PROBING, "trying K = 6", untried=(3,))
    answers = iter([tried])

    async def ask(report: StepReport, standing: StandingLimits | None) -> DepthPlan:
        for answer in answers:
            return answer
        return await engine.ask(report, standing)

    reporter = DepthReporter(engine.read, engine.apply, ask, now_s=lambda: engine.now_s)
    await reporter.report()
    assert engine.table == tried.table
    engine.now_s += TRIAL_S
    await reporter.report()
    assert set(engine.table.depths) == {3}
