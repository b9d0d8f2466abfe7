"""Sums over decode-only steps and steps with prompts, and scores of drafts cut before verification.

Imports no vllm.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from peagle.engine.depth.draft_chances import DraftChances


@dataclass(slots=True)
class Readings:
    """Number of times the sums have been read."""

    count: int = 0


@dataclass(slots=True)
class CellSums:
    """Mutable counterpart of `snapshot.StepCell`; its lists have one entry for each draft position.

    `readings` is shared with its `StepSums`; `changed_at` is their number at the last change.
    """

    batch_size: int
    depth: int
    depth_max: int
    readings: Readings = field(default_factory=Readings)
    changed_at: int = field(init=False)
    steps: int = 0
    seconds: float = 0.0
    tokens: int = 0
    drafts: int = 0
    drafted: list[int] = field(init=False)
    accepted: list[int] = field(init=False)
    tail_reached: list[int] = field(init=False)
    tail_matched: list[int] = field(init=False)
    rested: int = 0
    ended: int = 0
    spared: int = 0
    whole: list[int] = field(init=False)
    equal_right: list[float] = field(init=False)
    shared_right: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.drafted = [0] * self.depth_max
        self.accepted = [0] * self.depth_max
        self.tail_reached = [0] * self.depth_max
        self.tail_matched = [0] * self.depth_max
        self.whole = [0] * self.depth_max
        self.equal_right = [0.0] * self.depth_max
        self.shared_right = [0.0] * self.depth_max
        self.changed_at = self.readings.count

    def add_step(self, seconds: float, tokens: int, rested: int, ended: int) -> None:
        self.changed_at = self.readings.count
        self.steps += 1
        self.seconds += seconds
        self.tokens += tokens
        self.rested += rested
        self.ended += ended

    def add_draft(self, drafted: int, accepted: int) -> None:
        """Count one request's verified draft: `accepted` of its first `drafted` tokens were accepted."""
        self.changed_at = self.readings.count
        self.drafts += 1
        for position in range(drafted):
            self.drafted[position] += 1
        for position in range(accepted):
            self.accepted[position] += 1
        if drafted and drafted == accepted:
            self.whole[drafted - 1] += 1

    def add_tail(self, verified: int, drafted: int, matched: int) -> None:
        """Count a tail cut after `verified` tokens: of the first `drafted`, the target emitted the first `matched`."""
        self.changed_at = self.readings.count
        for position in range(verified, min(drafted, matched + 1)):
            self.tail_reached[position] += 1
            if position < matched:
                self.tail_matched[position] += 1

    def add_expected(self, right: Sequence[tuple[float, float]]) -> None:
        """Add, by K - 1, the expected accepted drafts with K for each request, and with as many shared out."""
        self.changed_at = self.readings.count
        for position, (equal, shared) in enumerate(right):
            self.equal_right[position] += equal
            self.shared_right[position] += shared

    def plain(self) -> dict[str, Any]:
        """Return plain values by the names of `StepCell`'s fields."""
        return {
            "batch_size": self.batch_size,
            "depth": self.depth,
            "steps": self.steps,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "drafts": self.drafts,
            "drafted": list(self.drafted),
            "accepted": list(self.accepted),
            "tail_reached": list(self.tail_reached),
            "tail_matched": list(self.tail_matched),
            "rested": self.rested,
            "ended": self.ended,
            "spared": self.spared,
            "whole": list(self.whole),
            "equal_right": list(self.equal_right),
            "shared_right": list(self.shared_right),
        }


@dataclass(slots=True)
class PromptCellSums:
    """Mutable counterpart of `snapshot.PromptCell`."""

    drafter: bool
    beside: bool = False
    steps: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    decoded: int = 0
    verified: int = 0


class PromptSums:
    """Mutable counterpart of `snapshot.PromptStats`."""

    def __init__(self) -> None:
        self._cells = {key: PromptCellSums(*key) for key in product((False, True), repeat=2)}
        # Prompt tokens found in the prefix cache, by request.
        self._cached: dict[str, int] = {}
        self._ended_prompt_tokens = self._ended_output_tokens = 0

    def add(self, step: PromptCellSums) -> None:
        cell = self._cells[step.drafter, step.beside]
        cell.steps += step.steps
        cell.seconds += step.seconds
        cell.prompt_tokens += step.prompt_tokens
        cell.decoded += step.decoded
        cell.verified += step.verified

    def begin(self, request_id: str, cached_tokens: int) -> None:
        """Record an admitted request. A preempted request keeps its first count: later it finds its own tokens."""
        self._cached.setdefault(request_id, cached_tokens)

    def end(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """Record the end of a request; a request that never began is not counted."""
        cached = self._cached.pop(request_id, None)
        if cached is not None:
            self._ended_prompt_tokens += max(0, prompt_tokens - cached)
            self._ended_output_tokens += output_tokens

    def plain(self) -> dict[str, Any]:
        """Return plain values by the names of `PromptStats`' fields."""
        return {
            "cells": [asdict(cell) for cell in self._cells.values() if cell.steps],
            "ended_prompt_tokens": self._ended_prompt_tokens,
            "ended_output_tokens": self._ended_output_tokens,
        }


@dataclass(slots=True)
class RowSums:
    """Mutable counterpart of `snapshot.RowCounts`."""

    verified: int = 0
    drafted: int = 0
    unfitted: int = 0

    def add(self, verified: int, drafted: int, unfitted: int) -> None:
        self.verified += verified
        self.drafted += drafted
        self.unfitted += unfitted


class StepSums:
    """One cell for each (batch size, K) that occurred; at most `max_num_seqs` times `depth_max` + 1."""

    def __init__(self, depth_max: int) -> None:
        self.depth_max = depth_max
        self._readings = Readings()
        self._cells: dict[tuple[int, int], CellSums] = {}

    def cell(self, batch_size: int, depth: int) -> CellSums:
        key = (batch_size, depth)
        if (cell := self._cells.get(key)) is None:
            cell = self._cells[key] = CellSums(batch_size, depth, self.depth_max, self._readings)
        return cell

    def read(self, since: int = 0) -> tuple[int, list[dict[str, Any]]]:
        """Return the number of this reading, and the cells that changed after reading `since`; 0 for all.

        A large engine has thousands of cells, of which a load changes few.
        """
        changed = [cell.plain() for cell in self._cells.values() if cell.changed_at >= since]
        self._readings.count += 1
        return self._readings.count, changed


@dataclass(frozen=True, slots=True)
class CutDraft:
    """A draft of which the target verified only the first `verified` tokens.

    `start` is the index among the request's tokens of the position drafted by `tokens[0]`; `confidence` is the
    drafter's probability of each of `tokens`, None if unknown.
    """

    cell: CellSums
    start: int
    verified: int
    tokens: Sequence[int]
    confidence: Sequence[float] | None = None


class CutTails:
    """Scores cut tails against what the target emits next: acceptance beyond K, without verification cost.

    A position counts as reached if every earlier position equals the emitted token, and as matched if it also does.
    Verification would give the same result, for greedy and sampled requests, because a draft is accepted with the
    probability that the target emits it. A draft counts once the request has emitted that far. So the end of a request
    removes matches and misses alike, and the ratio stays unbiased.

    Holds at most `depth_max` drafts per request: each step emits a token, and a draft is scored after `depth_max`.
    """

    def __init__(self, chances: DraftChances) -> None:
        self._chances = chances
        self._waiting: dict[str, deque[CutDraft]] = {}

    def add(self, request_id: str, draft: CutDraft) -> None:
        self._waiting.setdefault(request_id, deque()).append(draft)

    def settle(self, request_id: str, tokens: Sequence[int]) -> None:
        """Score the drafts that `tokens`, all of the request's tokens so far, suffice for."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return
        while waiting and waiting[0].start + len(waiting[0].tokens) <= len(tokens):
            self._score(request_id, waiting.popleft(), tokens)
        if not waiting:
            del self._waiting[request_id]

    def finish(self, request_id: str, tokens: Sequence[int]) -> None:
        """Score the remaining drafts as far as `tokens` goes, and forget the request."""
        for draft in self._waiting.pop(request_id, ()):
            self._score(request_id, draft, tokens)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waiting(self, request_id: str) -> int:
        """Return how many of the request's drafts are not scored yet."""
        return len(self._waiting.get(request_id, ()))

    def _score(self, request_id: str, draft: CutDraft, tokens: Sequence[int]) -> None:
        emitted = tokens[draft.start : draft.start + len(draft.tokens)]
        matched = 0
        while matched < len(emitted) and emitted[matched] == draft.tokens[matched]:
            matched += 1
        draft.cell.add_tail(draft.verified, len(emitted), matched)
        self._chances.learn(request_id, draft.confidence, draft.verified, len(emitted), matched)
