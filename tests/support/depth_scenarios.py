"""A replica of known step times and acceptance that is quick enough to sweep over many, and the loop around a rule."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Protocol

import numpy as np

from peagle.engine.depth.draft_chances import DraftChances
from peagle.router.depth import AcceptancePrior, CostPrior, DepthPlan, DepthSettings, batch_ranges
from peagle.router.depth.draft_sharing import expected_right, shared
from peagle.router.snapshot import DepthTable, PromptCell, PromptStats, StepCell, StepReport, StepStats, StepTime
from support.step_costs import DEPTH_MAX, DEPTHS, Cost

BATCH_MAX, REPORT_S = 128, 0.5
LOADS = (1, 2, 4, 8, 16, 32, 64, 128)

# A guess of another machine and another model: what is learned must not rest on it.
PRIOR = CostPrior(
    step_s=1.6e-3, weights_s=2.0e-3, sequence_s=10e-6, token_s=8e-6, draft_s=1.5e-3, experts_s=3.0e-3, experts=32,
    experts_active=4,
)  # fmt: skip


_POSITIONS = np.arange(DEPTH_MAX)


class _Sums:
    """Of one batch size and K, as an engine keeps them."""

    def __init__(self) -> None:
        self.steps = self.tokens = self.drafts = self.rested = 0
        self.seconds = 0.0
        self.drafted, self.accepted, self.whole, self.reached, self.matched = np.zeros((5, DEPTH_MAX), dtype=np.int64)
        self.equal, self.shared = np.zeros((2, DEPTH_MAX))

    def add(self, seconds: float, tokens: int, depths: Any, guessed: Any, rested: int, expected: Any) -> None:
        self.steps += 1
        self.seconds += seconds
        self.tokens += tokens
        self.rested += rested
        verified, depth, right = depths[:, None] > _POSITIONS, depths[:, None], guessed[:, None]
        matched = right > _POSITIONS
        self.drafts += len(depths)
        self.drafted += verified.sum(axis=0)
        self.accepted += (verified & matched).sum(axis=0)
        self.whole += ((depth == _POSITIONS + 1) & matched).sum(axis=0)
        self.reached += (~verified & (right >= _POSITIONS)).sum(axis=0)
        self.matched += (~verified & matched).sum(axis=0)
        if expected is not None:
            self.equal += expected[:, 0]
            self.shared += expected[:, 1]

    def cell(self, batch_size: int, depth: int, tails: bool) -> StepCell:
        counts = [self.drafted, self.accepted, self.reached * tails, self.matched * tails]
        return StepCell(
            batch_size, depth, self.steps, self.seconds, self.tokens, self.drafts if depth else 0,
            *(tuple(each.tolist()) for each in counts),
            rested=self.rested if depth else 0,
            whole=tuple(self.whole.tolist()),
            equal_right=tuple(self.equal.tolist()), shared_right=tuple(self.shared.tolist()),
        )  # fmt: skip


class Rule(Protocol):
    """What decides about one replica."""

    def step(self, report: StepReport, now_s: float) -> DepthPlan: ...


@dataclass
class Served:
    """An engine in simulated time, of which one step costs some ten microseconds.

    Attributes:
        cost: Seconds of a step.
        curve: Acceptance by position, at a time.
        load: Requests at once, at a time.
        spread: How far a request's acceptance lies from the mean: 0.3 is up to that part of the way to 0 and to 1.
        step_sd: Deviation of the logarithm of one step's time; one step in a hundred takes three times as long.
        skips: Whether K = 0 skips the drafter; a request that saw such a step drafts no more.
        tails: Whether cut tails are scored.
        answer_tokens, prompt_tokens: Of each request.
        prompt_token_s: What the target takes for a token of a prompt; the drafter takes 0.4 of it on top.
        pace: Factor on all step times, at a time.
        mixed: Whether every second request's drafts are right 0.4 times as often at each position: noise beside code.
        by_request: Whether the engine shares drafts out, by what became of each request's last ones.
    """

    cost: Cost
    curve: Callable[[float], Sequence[float]]
    load: Callable[[float], int]
    spread: float = 0.3
    step_sd: float = 0.05
    skips: bool = True
    tails: bool = False
    answer_tokens: int = 300
    prompt_tokens: int = 0
    prompt_token_s: float = 2e-5
    pace: Callable[[float], float] = field(default=lambda _: 1.0)
    mixed: bool = False
    by_request: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.chances = DraftChances(DEPTH_MAX)
        self.names = np.zeros(0, dtype=np.int64)
        self.came = self.steps = 0
        self.now_s, self.tokens = 0.0, 0
        self.table = DepthTable(0, (DEPTH_MAX,))
        self.spent_s = 0.0
        self.static_s = np.zeros(len(DEPTHS))
        self.used: list[tuple[float, float, int, int]] = []
        """Of each step: when it ended, its yield over that of the best static K then, batch size and K."""
        self._requests = np.random.default_rng(self.seed + 1)
        self._costs: dict[int, Any] = {}
        self.left = np.zeros(0, dtype=np.int64)
        self.rests = np.zeros(0, dtype=bool)
        self.luck = np.zeros((0, 1))
        self.survival = np.zeros((0, DEPTH_MAX))
        self._curve: Sequence[float] = ()
        self._draws = iter(())

    def run(self, until_s: float) -> StepReport:
        """Serve until then; return what that added."""
        self._cells: dict[tuple[int, int], _Sums] = {}
        self._prompts: dict[bool, list[float]] = {}
        self._ended = 0
        while self.now_s < until_s:
            batch_size = self.load(self.now_s)
            if batch_size == 0:
                self.now_s = min(until_s, self.next_s())
                continue
            self.one_step(batch_size)
        cells = tuple(self._cell(*key) for key in sorted(self._cells))
        prompts = PromptStats(
            tuple(
                PromptCell(drafter, True, int(n), s, int(p), int(d), int(v))
                for drafter, (n, s, p, d, v) in self._prompts.items()
            ),
            self._ended * self.prompt_tokens,
            self._ended * self.answer_tokens,
        )
        return StepReport(StepStats(self.table, DEPTH_MAX, cells, prompts))

    def next_s(self) -> float:
        """When a replica without load may have some again: it looks again with the next report."""
        return self.now_s + REPORT_S

    def answers(self, count: int) -> Any:
        """Lengths of so many new answers."""
        if self.now_s == 0.0:
            return self.random.integers(1, self.answer_tokens + 1, count)
        return np.full(count, self.answer_tokens)

    def timed(self, batch_size: int, depth: int, steps: int = 14) -> StepTime:
        """What calibration measures: a mean of few steps."""
        seconds = self.cost(batch_size, depth, depth > 0 or not self.skips) * self._luck(steps).mean()
        return StepTime(batch_size, depth, steps, float(steps * seconds))

    def calibration(self) -> tuple[StepTime, ...]:
        sizes = [batches.at for batches in batch_ranges(BATCH_MAX)]
        return tuple(self.timed(*point) for point in product(sizes, DEPTHS))

    def _luck(self, count: int) -> Any:
        luck = self.random.lognormal(0.0, self.step_sd, count)
        luck[self.random.random(count) < 0.01] *= 3.0
        return luck

    def _survival(self, luck: Any) -> Any:
        curve = np.asarray(self._curve)
        return np.cumprod(curve + luck * np.where(luck > 0, 1.0 - curve, curve), axis=1)

    def _keep(self, kept: Any) -> None:
        if self.by_request:
            gone = np.ones(len(self.names), dtype=bool)
            gone[kept] = False
            for name in self.names[gone]:
                self.chances.forget(str(name))
        self.left, self.rests, self.luck, self.survival, self.names = (
            each[kept] for each in (self.left, self.rests, self.luck, self.survival, self.names)
        )

    def admit(self, batch_size: int) -> int:
        if (curve := self.curve(self.now_s)) is not self._curve:
            self._curve = curve
            self.survival = self._survival(self.luck)
        new = batch_size - len(self.left)
        if new < 0:
            self._keep(slice(batch_size))
        elif new > 0:
            self.left = np.concatenate([self.left, self.answers(new)])
            self.rests = np.concatenate([self.rests, np.zeros(new, dtype=bool)])
            luck = self._requests.uniform(-self.spread, self.spread, (new, 1))
            if self.mixed:
                luck[(self.came + np.arange(new)) % 2 == 1] = -0.6
            self.luck = np.concatenate([self.luck, luck])
            self.names = np.concatenate([self.names, self.came + np.arange(new)])
            self.came += new
            self.survival = np.concatenate([self.survival, self._survival(self.luck[-new:])])
        return max(0, new)

    def guessed(self) -> Any:
        """How many of each request's next drafts are right, up to the deepest."""
        return (self.random.random((len(self.left), 1)) < self.survival).sum(axis=1)

    def one_step(self, batch_size: int) -> None:
        new = self.admit(batch_size)
        depth = self.table.depth_at(batch_size)
        runs = depth > 0 or not self.skips
        if not runs:
            self.rests[:] = True
        guessed = self.guessed()
        drafts = ~self.rests
        depths, expected = self._depths(depth, drafts)
        right = np.minimum(guessed, depths)
        emitted = np.minimum(1 + right, self.left)
        drafting = int(drafts.sum()) if depth else 0
        try:
            luck = next(self._draws)
        except StopIteration:
            self._draws = iter(self._luck(1000).tolist())
            luck = next(self._draws)
        pace = self.pace(self.now_s)
        verified = int(depths.sum())
        seconds = self.cost(batch_size, verified / batch_size, drafting > 0 or (runs and not self.skips)) * pace
        share = self._compare(batch_size, depth, depths, seconds, pace, new * self.prompt_tokens * self.prompt_token_s)
        seconds *= luck
        tokens = int(emitted.sum())
        if new and self.prompt_tokens:
            seconds += new * self.prompt_tokens * self.prompt_token_s * (1.4 if runs else 1.0)
            added = np.array([1, seconds, new * self.prompt_tokens, batch_size, verified])
            self._prompts[runs] = added + self._prompts.get(runs, 0.0)
        else:
            cell = self._cells.setdefault((batch_size, depth), _Sums())
            cell.add(seconds, tokens, depths[drafts], guessed[drafts], batch_size - int(drafts.sum()), expected)
        if self.by_request:
            for name, verified_of, right_of in zip(self.names[drafts], depths[drafts], right[drafts], strict=True):
                self.chances.learn(str(name), None, 0, int(verified_of), int(right_of))
        self.left = self.left - emitted
        if not self.left.all():
            kept = self.left > 0
            self._ended += len(kept) - int(kept.sum())
            self._keep(kept)
        self.tokens += tokens
        self.now_s += seconds
        self.used.append((self.now_s, share, batch_size, depth))

    def _depths(self, depth: int, drafts: Any) -> tuple[Any, Any]:
        """What of each draft is verified; and what is expected to be right, as an engine tells now and then."""
        depths = np.where(drafts, depth, 0)
        if not (self.table.by_request and depth and drafts.sum() > 1):
            return depths, None
        self.steps += 1
        names = [str(name) for name in self.names[drafts]]
        chances = [self.chances.survival(name, DEPTH_MAX, None) for name in names]
        depths[drafts] = shared(chances, depth * len(names))
        if self.steps % 8:
            return depths, None
        every = range(1, DEPTH_MAX + 1)
        return depths, np.array([expected_right(chances, each, DEPTH_MAX) for each in every])

    def _compare(
        self, batch_size: int, depth: int, depths: Any, seconds: float, pace: float, prompts_s: float
    ) -> float:
        """Add the expected time of this step's tokens at each static K; return its yield over that of the best."""
        if batch_size not in self._costs:
            costs = [self.cost(batch_size, k, k > 0 or not self.skips) for k in DEPTHS]
            self._costs[batch_size] = np.array(costs)
        tokens = batch_size + np.concatenate([[0.0], self.survival.sum(axis=0)]).cumsum()[list(DEPTHS)]
        static_s = self._costs[batch_size] * pace / tokens
        yielded = batch_size + float(self.survival[depths[:, None] > np.arange(DEPTH_MAX)].sum())
        ran = depth > 0 or not self.skips
        self.spent_s += seconds + prompts_s * (1.4 if ran else 1.0)
        self.static_s += static_s * yielded + prompts_s * np.where((np.array(DEPTHS) > 0) | (not self.skips), 1.4, 1.0)
        return float(static_s.min() * yielded / seconds)

    def _cell(self, batch_size: int, depth: int) -> StepCell:
        return self._cells[batch_size, depth].cell(batch_size, depth, self.tails)


@dataclass
class Open(Served):
    """One whose requests come at random, and ask for answers of random length."""

    per_second: float = 1.0
    requests_s: float = 0.0
    """Seconds that requests spent here, summed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._arrivals = random.Random(self.seed + 1000)
        self._arrives_s, self._waiting = 0.0, 0
        self.load = self._come

    def _come(self, now_s: float) -> int:
        while self._arrives_s <= now_s:
            self._waiting += 1
            self._arrives_s += self._arrivals.expovariate(self.per_second)
        taken = min(self._waiting, BATCH_MAX - len(self.left))
        self._waiting -= taken
        return len(self.left) + taken

    def next_s(self) -> float:
        return self._arrives_s

    def answers(self, count: int) -> Any:
        return np.array([1 + int(self._arrivals.expovariate(1.0 / self.answer_tokens)) for _ in range(count)])

    def one_step(self, batch_size: int) -> None:
        started_s = self.now_s
        super().one_step(batch_size)
        self.requests_s += (batch_size + self._waiting) * (self.now_s - started_s)


def settings_of(replica: Served, cost: CostPrior = PRIOR) -> DepthSettings:
    return DepthSettings(
        depth_max=DEPTH_MAX,
        depth_static=DEPTH_MAX,
        batch_max=BATCH_MAX,
        cost=cost,
        acceptance=AcceptancePrior.geometric(DEPTH_MAX),
        drafter_skipped_at_zero=replica.skips,
        by_request=replica.by_request,
    )


@dataclass(frozen=True)
class Scenario:
    """A replica to be served for `seconds`; what is compared is what it yields from `from_s` on."""

    name: str
    replica: Callable[[int], Served]
    seconds: float = 20.0
    from_s: float = 4.0
    calibrated: bool = True
    parts: tuple[float, ...] = ()
    """Where the input changes: each part is compared with its own best static K."""


@dataclass
class Loop:
    """A replica and a rule around it."""

    replica: Served
    rule: Rule
    calibrated: bool = True
    plans: list[tuple[float, DepthPlan]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._calibration = self.replica.calibration() if self.calibrated else ()

    def run(self, until_s: float) -> None:
        replica = self.replica
        while replica.now_s < until_s:
            report = replace(replica.run(min(until_s, replica.now_s + REPORT_S)), calibration=self._calibration)
            plan = self.rule.step(report, replica.now_s)
            self.plans.append((replica.now_s, plan))
            replica.table = plan.table


def served(scenario: Scenario, seed: int, rule: Callable[[DepthSettings], Rule]) -> tuple[list[float], Loop]:
    """Run it; return the yield of each part over that of the part's best static K."""
    replica = scenario.replica(seed)
    loop = Loop(replica, rule(settings_of(replica)), scenario.calibrated)
    loop.run(scenario.from_s)
    ratios = []
    for until_s in (*scenario.parts, scenario.seconds):
        spent_s, static_s = replica.spent_s, replica.static_s.copy()
        loop.run(until_s)
        ratios.append(float((replica.static_s - static_s).min() / (replica.spent_s - spent_s)))
    return ratios, loop


def phased(*phases: tuple[float, Any]) -> Callable[[float], Any]:
    """What holds at a time, of pairs of when it ends and what it is."""
    return lambda now_s: next((what for until_s, what in phases if now_s < until_s), phases[-1][1])
