"""A replica whose acceptance and step times are known, to close the loop around the depth rule in simulated time.

It keeps the sums that the engine keeps, step by step, with real random drafts, and reports twice a second.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, prod, sqrt
from typing import Any

from peagle.router.depth import DepthPlan, DepthSettings, DepthState, batch_ranges, start, step
from peagle.router.snapshot import DepthTable, PromptCell, PromptStats, StepCell, StepReport, StepStats, StepTime

REPORT_S = 0.5

CODE = (0.78, 0.74, 0.78, 0.80, 0.76, 0.80, 0.78)
PROSE = (0.62, 0.58, 0.62, 0.62, 0.60, 0.62, 0.60)
NOISE = (0.20, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25)


def quick_step_s(batch_size: int, tokens: int, drafting: int) -> float:
    """What `QUICK_CPU` guesses well: 2.8 ms without speculation at batch 1, 4.7 ms with any K; K = 0 wins at 8."""
    draft_s = 1.75e-3 + 0.15e-3 * drafting if drafting else 0.0
    return 0.45e-3 + 0.15e-3 * batch_size + draft_s + max(2.2e-3, 0.14e-3 * tokens)


@dataclass
class _Sequence:
    left: int
    drafts: bool
    luck: float


@dataclass
class _Sums:
    depth_max: int
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    drafts: int = 0
    counts: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        names = ("drafted", "accepted", "tail_reached", "tail_matched")
        self.counts = {name: [0] * self.depth_max for name in names}

    def add(self, name: str, first: int, last: int) -> None:
        for position in range(first, last):
            self.counts[name][position] += 1


@dataclass
class Replica:
    """One engine in simulated time.

    Attributes:
        conditional: Probability that a draft is right where all before it were, by position, at a time.
        load: Batch size at a time; 0 for none.
        step_s: Seconds of a step, by batch size, tokens computed by the target, and sequences drafted for.
        tails: Whether cut tails are scored, K = 0 included, as the engine does that always drafts Kmax.
        skips: Whether K = 0 skips the drafter; a request that saw such a step drafts no more.
        output_tokens: Length of each answer.
        spread: How far each request's acceptance lies from the mean: 0.5 is up to half of the distance to 0 and to 1.
        step_sd: Relative scatter of step times.
        delivers: Share of accepted drafts that are delivered.
        prompt_tokens: Length of each prompt; a step that has any is no decode-only one.
        prompt_token_s: What the target takes for one of them,
        prompt_draft_ratio: and the drafter, as a share of that.
    """

    conditional: Callable[[float], Sequence[float]]
    load: Callable[[float], int]
    step_s: Callable[[int, int, int], float] = quick_step_s
    depth_max: int = 7
    depth_static: int = 7
    tails: bool = True
    skips: bool = False
    output_tokens: int = 128
    spread: float = 0.0
    step_sd: float = 0.1
    delivers: float = 1.0
    prompt_tokens: int = 0
    prompt_token_s: float = 0.17e-3
    prompt_draft_ratio: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now_s = 0.0
        self.table = DepthTable(0, (self.depth_static,))
        self.tokens = 0
        self.used: list[tuple[float, int, int]] = []
        self._sums: dict[tuple[int, int], _Sums] = {}
        self._prompts: list[PromptCell] = []
        self._ended = 0
        self._sequences: list[_Sequence] = []

    def run(self, until_s: float) -> StepReport:
        """Serve until then; return what that added to the sums."""
        self._sums, self._prompts, self._ended = {}, [], 0
        while self.now_s < until_s:
            batch_size = self.load(self.now_s)
            if batch_size == 0:
                self.now_s = min(until_s, self._next_s())
                continue
            self._one_step(batch_size)
        cells = tuple(self._cell(*key) for key in sorted(self._sums))
        prompts = PromptStats(tuple(self._prompts), self._ended * self.prompt_tokens, self._ended * self.output_tokens)
        return StepReport(StepStats(self.table, self.depth_max, cells, prompts))

    def apply(self, table: DepthTable) -> None:
        """Take a table as the engine does: never an older one."""
        assert table.version >= self.table.version
        assert table.version > self.table.version or table == self.table
        assert all(0 <= depth <= self.depth_max for depth in table.depths)
        self.table = table

    def timed(self, batch_size: int, depth: int, steps: int = 10) -> StepTime:
        """What so many decode-only steps take, each with a draft of every request."""
        drafting = batch_size if depth or not self.skips else 0
        step_s = self.step_s(batch_size, batch_size * (depth + 1), drafting)
        luck = self.random.gauss(1.0, self.step_sd / sqrt(steps))
        return StepTime(batch_size, depth, steps, steps * step_s * luck)

    def tokens_per_s(self, batch_size: int, depth: int, now_s: float) -> float:
        """What a static K yields, in truth, while every request can draft."""
        conditional = self.conditional(now_s)
        tokens = 1.0 + sum(prod(conditional[: j + 1]) for j in range(depth))
        drafting = batch_size if depth or not self.skips else 0
        decode_s = self.step_s(batch_size, batch_size * (depth + 1), drafting) / (batch_size * tokens)
        return 1.0 / (decode_s + self._prompt_s(drafting > 0) / self.output_tokens)

    def _prompt_s(self, drafts: bool) -> float:
        return self.prompt_tokens * self.prompt_token_s * (1.0 + self.prompt_draft_ratio * drafts)

    def best(self, batch_size: int, now_s: float, depths: Sequence[int] = (0, 1, 2, 3, 5, 7)) -> tuple[int, float]:
        """The best static K, and its tokens/s."""
        rates = {depth: self.tokens_per_s(batch_size, depth, now_s) for depth in depths}
        depth = max(rates, key=rates.__getitem__)
        return depth, rates[depth]

    def _one_step(self, batch_size: int) -> None:
        del self._sequences[batch_size:]
        new = batch_size - len(self._sequences)
        self._sequences += [self._request() for _ in range(new)]
        depth = self.table.depth_at(batch_size)
        has_prompts = new > 0 and self.prompt_tokens > 0
        sums = _Sums(self.depth_max)
        if not has_prompts:
            sums = self._sums.setdefault((batch_size, depth), sums)
        drafting = computed = tokens = 0
        for one in self._sequences:
            if depth == 0 and self.skips:
                one.drafts = False
            emitted = 1
            computed += 1
            if one.drafts:
                drafting += 1
                computed += depth
                emitted += self._draft(one, depth, sums)
            emitted = min(emitted, one.left)
            one.left -= emitted
            tokens += emitted
        self._ended += sum(one.left == 0 for one in self._sequences)
        self._sequences = [one for one in self._sequences if one.left > 0]
        drafts = depth > 0 or not self.skips
        prompts_s = new * self._prompt_s(drafts)
        luck = max(0.3, self.random.gauss(1.0, self.step_sd))
        seconds = (self.step_s(batch_size, computed, drafting) + prompts_s) * luck
        if has_prompts:
            verified = computed - batch_size
            self._prompts.append(PromptCell(drafts, True, 1, seconds, new * self.prompt_tokens, batch_size, verified))
        sums.steps += 1
        sums.seconds += seconds
        sums.tokens += tokens
        self.tokens += tokens
        self.now_s += seconds
        self.used.append((self.now_s, batch_size, depth))

    def _next_s(self) -> float:
        """When a replica without load may have some again."""
        return inf

    def _request(self) -> _Sequence:
        left = self.random.randint(1, self.output_tokens) if self.now_s == 0.0 else self.output_tokens
        return _Sequence(left, True, self.random.uniform(-self.spread, self.spread))

    def _draft(self, one: _Sequence, depth: int, sums: _Sums) -> int:
        right = 0
        for c in self.conditional(self.now_s):
            lucky = c + one.luck * (1.0 - c if one.luck > 0 else c)
            if self.random.random() >= lucky:
                break
            right += 1
        if depth:
            sums.drafts += 1
            sums.add("drafted", 0, depth)
            sums.add("accepted", 0, min(right, depth))
        if self.tails:
            sums.add("tail_reached", depth, min(right + 1, self.depth_max))
            sums.add("tail_matched", depth, right)
        return sum(self.random.random() < self.delivers for _ in range(min(right, depth)))

    def _cell(self, batch_size: int, depth: int) -> StepCell:
        sums = self._sums[batch_size, depth]
        counts: Mapping[str, Any] = {name: tuple(values) for name, values in sums.counts.items()}
        return StepCell(batch_size, depth, sums.steps, sums.seconds, sums.tokens, sums.drafts, **counts)


class OpenReplica(Replica):
    """One whose requests come at random, whatever it serves already, and ask for answers of random length.

    Attributes:
        requests_s: Seconds that requests spent here, summed; over the time that passed, how many were open on average.
    """

    def __init__(self, conditional: Sequence[float], per_second: float, batch_max: int = 32, **more: Any) -> None:
        super().__init__(lambda _: conditional, self._come, **more)
        self._per_second, self._batch_max = per_second, batch_max
        self._arrivals = random.Random(self.seed + 1000)
        self._arrives_s, self._waiting = 0.0, 0
        self.requests_s = 0.0

    def _come(self, now_s: float) -> int:
        while self._arrives_s <= now_s:
            self._waiting += 1
            self._arrives_s += self._arrivals.expovariate(self._per_second)
        taken = min(self._waiting, self._batch_max - len(self._sequences))
        self._waiting -= taken
        return len(self._sequences) + taken

    def _next_s(self) -> float:
        return self._arrives_s

    def _one_step(self, batch_size: int) -> None:
        started_s = self.now_s
        super()._one_step(batch_size)
        self.requests_s += (batch_size + self._waiting) * (self.now_s - started_s)

    def _request(self) -> _Sequence:
        tokens = 1 + int(self._arrivals.expovariate(1.0 / self.output_tokens))
        return _Sequence(tokens, True, self.random.uniform(-self.spread, self.spread))


@dataclass
class Loop:
    """A replica and the rule around it; one that is calibrated has timed its steps before it served."""

    replica: Replica
    settings: DepthSettings
    calibrated: bool = False
    state: DepthState = field(init=False)
    plans: list[tuple[float, DepthPlan]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = start(self.settings)
        sizes = (batches.at for batches in batch_ranges(self.settings.batch_max))
        points = product(sizes, self.settings.rungs)
        self._calibration = tuple(self.replica.timed(*point) for point in points) if self.calibrated else ()

    def run(self, until_s: float) -> "Loop":
        while self.replica.now_s < until_s:
            report = self.replica.run(min(until_s, self.replica.now_s + REPORT_S))
            if self.calibrated:
                report = replace(report, calibration=self._calibration)
            self.state, plan = step(self.state, report, self.settings, self.replica.now_s)
            self.plans.append((self.replica.now_s, plan))
            self.replica.apply(plan.table)
        return self

    def tokens_per_s(self, from_s: float, until_s: float) -> float:
        """Measured, by running on: for a stretch that starts where the loop stands."""
        assert abs(self.replica.now_s - from_s) < REPORT_S
        before, started_s = self.replica.tokens, self.replica.now_s
        self.run(until_s)
        return (self.replica.tokens - before) / (self.replica.now_s - started_s)

    def depths_used(self, from_s: float, until_s: float) -> list[int]:
        """K of every step in a stretch."""
        return [depth for now_s, _, depth in self.replica.used if from_s <= now_s < until_s]

    def changes(self, from_s: float, until_s: float) -> int:
        """How often K changed from one step to the next at the same batch size."""
        last: dict[int, int] = {}
        count = 0
        for now_s, batch_size, depth in self.replica.used:
            if from_s <= now_s < until_s and last.get(batch_size, depth) != depth:
                count += 1
            last[batch_size] = depth
        return count
