"""A replica with known acceptance and step times, in simulated time.

It keeps the same sums as the engine, step by step, with random drafts, and reports twice a second. A simulated step
takes about ten microseconds, so that many replicas can be simulated.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np

from peagle.engine.depth.draft_chances import DraftChances
from peagle.router.depth import depth_ladder
from peagle.router.depth.draft_sharing import expected_right, shared
from peagle.router.snapshot import DepthTable, PromptCell, PromptStats, StepCell, StepReport, StepStats, StepTime

CODE = (0.78, 0.74, 0.78, 0.80, 0.76, 0.80, 0.78)
PROSE = (0.62, 0.58, 0.62, 0.62, 0.60, 0.62, 0.60)
NOISE = (0.20, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25)

# A delayed step takes this many times as long.
_STALL = 3.0
# With shared drafts, one step in this many reports the expected yield of each K.
_TOLD_STEPS = 8

StepSeconds = Callable[[int, int, int], float]
"""Seconds of a step, by batch size, tokens computed by the target, and sequences drafted for."""


def quick_step_s(batch_size: int, tokens: int, drafting: int) -> float:
    """2.8 ms at batch 1 without drafts, 4.7 ms with any K; at batch 8 K = 0 wins. `QUICK_CPU` predicts this well."""
    draft_s = 1.75e-3 + 0.15e-3 * drafting if drafting else 0.0
    return 0.45e-3 + 0.15e-3 * batch_size + draft_s + max(2.2e-3, 0.14e-3 * tokens)


class _Sums:
    """Sums for one batch size and K, as an engine keeps them."""

    def __init__(self, depth_max: int) -> None:
        self._positions = np.arange(depth_max)
        self._steps = self._tokens = self._drafts = self._rested = 0
        self._seconds = 0.0
        self._drafted, self._accepted, self._whole, self._reached, self._matched = np.zeros((5, depth_max), np.int64)
        self._equal, self._shared = np.zeros((2, depth_max))

    def add(self, seconds: float, tokens: int, depths: Any, guessed: Any, rested: int, expected: Any) -> None:
        """Count a step.

        Args:
            seconds, tokens: Duration and output of the step.
            depths: Number of verified drafts of each request that drafts.
            guessed: Number of right tokens in each full draft.
            rested: Requests that draft no more.
            expected: By K - 1, expected right drafts with equal depths and shared out; None if not reported.
        """
        self._steps += 1
        self._seconds += seconds
        self._tokens += tokens
        self._rested += rested
        verified, matched = depths[:, None] > self._positions, guessed[:, None] > self._positions
        self._drafts += len(depths)
        self._drafted += verified.sum(axis=0)
        self._accepted += (verified & matched).sum(axis=0)
        self._whole += ((depths[:, None] == self._positions + 1) & matched).sum(axis=0)
        self._reached += (~verified & (guessed[:, None] >= self._positions)).sum(axis=0)
        self._matched += (~verified & matched).sum(axis=0)
        if expected is not None:
            self._equal += expected[:, 0]
            self._shared += expected[:, 1]

    def cell(self, batch_size: int, depth: int, tails: bool) -> StepCell:
        def each(counts: Any) -> tuple[Any, ...]:
            return tuple(counts.tolist())

        return StepCell(
            batch_size,
            depth,
            self._steps,
            self._seconds,
            self._tokens,
            self._drafts if depth else 0,
            each(self._drafted),
            each(self._accepted),
            each(self._reached * tails),
            each(self._matched * tails),
            rested=self._rested if depth else 0,
            whole=each(self._whole),
            equal_right=each(self._equal),
            shared_right=each(self._shared),
        )


@dataclass
class Replica:
    """One engine in simulated time.

    Attributes:
        conditional: By time, the probability at each position that a draft is right, given that those before it were.
        load: By time, the batch size; 0 for none.
        step_s: Seconds of a step.
        pace: By time, a factor on all step times.
        tails: Whether cut tails are scored, also at K = 0, as in an engine that always drafts Kmax.
        skips: Whether K = 0 skips the drafter; a request in such a step drafts no more.
        output_tokens: Length of each answer.
        spread: Spread of acceptance between requests: 0.5 is up to half of the distance to 0 and to 1.
        mixed: Whether every second request has 0.4 times the acceptance at each position: noise mixed with code.
        by_request: Whether the engine can share drafts among requests, by each request's recent acceptance.
        step_sd: Standard deviation of the logarithm of a step's time.
        stalls_ratio: Share of steps that are delayed, and take three times as long.
        delivers: Share of accepted drafts that are delivered.
        prompt_tokens: Length of each prompt; a step with prompts does not count as decode-only.
        prompt_token_s: The target's time for a prompt token.
        prompt_draft_ratio: The drafter's time, as a share of that.
        ended: By name of an ended request, its drafts, their tokens, and those accepted.
        spent_s, static_s: Expected seconds of all steps so far, and of the same tokens at each static K of the ladder.
    """

    conditional: Callable[[float], Sequence[float]]
    load: Callable[[float], int]
    step_s: StepSeconds = quick_step_s
    pace: Callable[[float], float] = field(default=lambda _: 1.0)
    depth_max: int = 7
    depth_static: int = 7
    tails: bool = True
    skips: bool = False
    output_tokens: int = 128
    spread: float = 0.0
    mixed: bool = False
    by_request: bool = False
    step_sd: float = 0.1
    stalls_ratio: float = 0.0
    delivers: float = 1.0
    prompt_tokens: int = 0
    prompt_token_s: float = 0.17e-3
    prompt_draft_ratio: float = 0.4
    seed: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self._requests = np.random.default_rng(self.seed + 1)
        self.depths = depth_ladder(self.depth_max)
        self.now_s, self.tokens = 0.0, 0
        self.table = DepthTable(0, (self.depth_static,))
        self.used: list[tuple[float, int, int]] = []
        self.spent_s, self.static_s = 0.0, np.zeros(len(self.depths))
        self.ended: dict[int, tuple[int, int, int]] = {}
        self._static_step_s: dict[int, Any] = {}
        self._chances = DraftChances(self.depth_max)
        self._came = self._shared_steps = 0
        self._curve: Sequence[float] = ()
        self._luck_left: list[float] = []
        # By request in the batch.
        self.left, self.names = np.zeros((2, 0), np.int64)
        self._rests = np.zeros(0, np.bool_)
        self._leans = np.zeros((0, 1))
        self._survival = np.zeros((0, self.depth_max))
        self._drafted = np.zeros((0, 3), np.int64)
        self._forget_sums()

    def run(self, until_s: float) -> StepReport:
        """Serve until `until_s`; return what was added to the sums."""
        while self.now_s < until_s:
            if batch_size := self.load(self.now_s):
                self.one_step(batch_size)
            else:
                self.now_s = min(until_s, self.next_s())
        return self.report()

    def report(self) -> StepReport:
        """Return what was added since the last report."""
        cells = tuple(self._sums[key].cell(*key, self.tails) for key in sorted(self._sums))
        prompt_cells = (
            PromptCell(drafter, True, int(steps), seconds, int(tokens), int(decoded), int(verified))
            for drafter, (steps, seconds, tokens, decoded, verified) in self._prompts.items()
        )
        ended = self._ended * self.prompt_tokens, self._ended * self.output_tokens
        stats = StepStats(self.table, self.depth_max, cells, PromptStats(tuple(prompt_cells), *ended))
        self._forget_sums()
        return StepReport(stats)

    def apply(self, table: DepthTable) -> None:
        """Apply a table as the engine does: never an older one."""
        assert table.version >= self.table.version
        assert table.version > self.table.version or table == self.table
        assert all(0 <= depth <= self.depth_max for depth in table.depths)
        self.table = table

    def timed(self, batch_size: int, depth: int, steps: int = 14) -> StepTime:
        """Return a calibration result: the mean of a few decode-only steps, each with a draft of every request."""
        luck = float(self._luck(steps).mean())
        return StepTime(batch_size, depth, steps, steps * self._uniform_step_s(batch_size, depth) * luck)

    def tokens_per_s(self, batch_size: int, depth: int, now_s: float) -> float:
        """Return the true tokens/s of a static K, if every request can draft."""
        conditional = self.conditional(now_s)
        tokens = 1.0 + sum(prod(conditional[: j + 1]) for j in range(depth))
        decode_s = self._uniform_step_s(batch_size, depth) / (batch_size * tokens)
        return 1.0 / (decode_s + self._prompt_s(depth > 0 or not self.skips) / self.output_tokens)

    def best(self, batch_size: int, now_s: float) -> tuple[int, float]:
        """Return the best static K, and its tokens/s."""
        rates = {depth: self.tokens_per_s(batch_size, depth, now_s) for depth in self.depths}
        depth = max(rates, key=rates.__getitem__)
        return depth, rates[depth]

    def next_s(self) -> float:
        """Return when a replica without load may have load again."""
        return inf

    def answers(self, count: int) -> Any:
        """Return the lengths of `count` new answers. Those of the first batch are already in progress."""
        if self.now_s == 0.0:
            return self.random.integers(1, self.output_tokens + 1, count)
        return np.full(count, self.output_tokens)

    def leans(self, count: int) -> Any:
        """Return the acceptance offset of `count` new requests, as parts of the distance to 0 or 1."""
        leans = self._requests.uniform(-self.spread, self.spread, count)
        if self.mixed:
            leans[(self._came + np.arange(count)) % 2 == 1] = -0.6
        return leans

    def one_step(self, batch_size: int) -> None:
        """Compute a step of `batch_size` requests: the current ones, with new ones or without the last."""
        new = self._admit(batch_size)
        depth = self.table.depth_at(batch_size)
        runs = depth > 0 or not self.skips
        if not runs:
            self._rests[:] = True
        guessed = (self.random.random((batch_size, 1)) < self._survival).sum(axis=1)
        drafts = ~self._rests
        depths, expected = self._share_out(depth, drafts)
        verified, resting = int(depths.sum()), batch_size - int(drafts.sum())
        right = np.minimum(guessed, depths)
        delivered = right if self.delivers == 1.0 else self.random.binomial(right, self.delivers)
        emitted = np.minimum(1 + delivered, self.left)
        pace, prompts_s = self.pace(self.now_s), new * self._prompt_s(drafts=False)
        step_s = self.step_s(batch_size, batch_size + verified, batch_size - resting if runs else 0) * pace
        self._compare(batch_size, depths, step_s, pace, prompts_s)
        tokens = int(emitted.sum())
        if not self._luck_left:
            self._luck_left = self._luck(1000).tolist()
        seconds = step_s * self._luck_left.pop()
        if prompts_s:
            seconds += new * self._prompt_s(runs)
            added = np.array([1, seconds, new * self.prompt_tokens, batch_size, verified])
            self._prompts[runs] = added + self._prompts.get(runs, 0.0)
        else:
            sums = self._sums.setdefault((batch_size, depth), _Sums(self.depth_max))
            sums.add(seconds, tokens, depths[drafts], guessed[drafts], resting, expected)
        if self.by_request:
            for name, of_draft, of_right in zip(self.names[drafts], depths[drafts], right[drafts], strict=True):
                self._chances.learn(str(name), None, 0, int(of_draft), int(of_right))
        self._drafted += np.stack([drafts & (depth > 0), depths, right], axis=1)
        self.left = self.left - emitted
        self.tokens += tokens
        self.now_s += seconds
        self.used.append((self.now_s, batch_size, depth))
        if not self.left.all():
            self._ended += int((self.left == 0).sum())
            self._keep(self.left > 0)

    def _forget_sums(self) -> None:
        self._sums: dict[tuple[int, int], _Sums] = {}
        self._prompts: dict[bool, Any] = {}
        self._ended = 0

    def _luck(self, count: int) -> Any:
        luck = self.random.lognormal(-(self.step_sd**2) / 2.0, self.step_sd, count)  # 1 on average
        luck[self.random.random(count) < self.stalls_ratio] *= _STALL
        return luck

    def _uniform_step_s(self, batch_size: int, depth: int) -> float:
        drafting = batch_size if depth or not self.skips else 0
        return self.step_s(batch_size, batch_size * (depth + 1), drafting)

    def _prompt_s(self, drafts: bool) -> float:
        return self.prompt_tokens * self.prompt_token_s * (1.0 + self.prompt_draft_ratio * drafts)

    def _admit(self, batch_size: int) -> int:
        """Fill or truncate the batch; return the number of new requests."""
        if (curve := self.conditional(self.now_s)) is not self._curve:
            self._curve = curve
            self._survival = self._survival_of(self._leans)
        new = batch_size - len(self.left)
        if new < 0:
            self._keep(np.arange(len(self.left)) < batch_size)
        elif new > 0:
            leans = self.leans(new)[:, None]
            self.left = np.concatenate([self.left, self.answers(new)])
            self.names = np.concatenate([self.names, self._came + np.arange(new)])
            self._rests = np.concatenate([self._rests, np.zeros(new, np.bool_)])
            self._leans = np.concatenate([self._leans, leans])
            self._drafted = np.concatenate([self._drafted, np.zeros((new, 3), np.int64)])
            self._survival = np.concatenate([self._survival, self._survival_of(leans)])
            self._came += new
        return max(0, new)

    def _keep(self, kept: Any) -> None:
        for name, (drafts, drafted, accepted) in zip(
            self.names[~kept].tolist(), self._drafted[~kept].tolist(), strict=True
        ):
            self.ended[name] = drafts, drafted, accepted
        self._drafted = self._drafted[kept]
        if self.by_request:
            for name in self.names[~kept]:
                self._chances.forget(str(name))
        self.left, self.names, self._rests = self.left[kept], self.names[kept], self._rests[kept]
        self._leans, self._survival = self._leans[kept], self._survival[kept]

    def _survival_of(self, leans: Any) -> Any:
        curve = np.asarray(self._curve)
        return np.cumprod(curve + leans * np.where(leans > 0, 1.0 - curve, curve), axis=1)

    def _share_out(self, depth: int, drafts: Any) -> tuple[Any, Any]:
        """Return how much of each draft is verified; and sometimes the expected yield, as an engine reports it."""
        depths = np.where(drafts, depth, 0)
        if not (self.table.by_request and depth and drafts.sum() > 1):
            return depths, None
        chances = [self._chances.survival(str(name), self.depth_max, None) for name in self.names[drafts]]
        depths[drafts] = shared(chances, depth * len(chances))
        self._shared_steps += 1
        if self._shared_steps % _TOLD_STEPS:
            return depths, None
        every = range(1, self.depth_max + 1)
        return depths, np.array([expected_right(chances, each, self.depth_max) for each in every])

    def _compare(self, batch_size: int, depths: Any, step_s: float, pace: float, prompts_s: float) -> None:
        """Add the expected time of this step, and of its tokens at each static K."""
        if batch_size not in self._static_step_s:
            seconds = [self._uniform_step_s(batch_size, depth) for depth in self.depths]
            self._static_step_s[batch_size] = np.array(seconds)
        survival = self._survival.sum(axis=0)
        tokens = batch_size + np.concatenate([[0.0], survival]).cumsum()[list(self.depths)]
        yielded = batch_size + float(self._survival[depths[:, None] > np.arange(self.depth_max)].sum())
        self.spent_s += step_s
        self.static_s += self._static_step_s[batch_size] * pace * yielded / tokens
        if prompts_s:
            drafted = 1.0 + self.prompt_draft_ratio
            runs = not self.skips or bool(self.table.depth_at(batch_size))
            self.spent_s += prompts_s * (drafted if runs else 1.0)
            self.static_s += prompts_s * np.where((np.array(self.depths) > 0) | (not self.skips), drafted, 1.0)


class OpenReplica(Replica):
    """A replica with random arrivals, independent of its load, and answers of random length.

    Attributes:
        requests_s: Sum of the seconds that requests spent here; divided by time it is the mean number of open requests.
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
        taken = min(self._waiting, self._batch_max - len(self.left))
        self._waiting -= taken
        return len(self.left) + taken

    def next_s(self) -> float:
        return self._arrives_s

    def answers(self, count: int) -> Any:
        return np.array([1 + int(self._arrivals.expovariate(1.0 / self.output_tokens)) for _ in range(count)])

    def one_step(self, batch_size: int) -> None:
        started_s = self.now_s
        super().one_step(batch_size)
        self.requests_s += (batch_size + self._waiting) * (self.now_s - started_s)
