"""Sums over steps, those that only decode and those with prompts, and the scoring of drafts that were cut before
verification. Imports no vllm.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

from peagle.engine.depth.draft_chances import DraftChances


@dataclass(slots=True)
class Readings:
    """How often the sums have been read."""

    count: int = 0


@dataclass(slots=True)
class CellSums:
    """Growing counterpart of `snapshot.StepCell`; its lists have one entry for each draft position.

    `readings` is shared with its `StepSums`, and `changed_at` how many of them there had been when it changed last.
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
        """Count one request's verified draft: `accepted` of its first `drafted` tokens were right."""
        self.changed_at = self.readings.count
        self.drafts += 1
        for position in range(drafted):
            self.drafted[position] += 1
        for position in range(accepted):
            self.accepted[position] += 1
        if drafted and drafted == accepted:
            self.whole[drafted - 1] += 1

    def add_tail(self, verified: int, drafted: int, matched: int) -> None:
        """Count the tail of a draft cut after `verified`: of its first `drafted` tokens, the first `matched` came."""
        self.changed_at = self.readings.count
        for position in range(verified, min(drafted, matched + 1)):
            self.tail_reached[position] += 1
            if position < matched:
                self.tail_matched[position] += 1

    def add_expected(self, right: Sequence[tuple[float, float]]) -> None:
        """Add, by K - 1, the drafts expected to be right with K for each request, and with as many shared out."""
        self.changed_at = self.readings.count
        for position, (equal, shared) in enumerate(right):
            self.equal_right[position] += equal
            self.shared_right[position] += shared

    def plain(self) -> dict[str, Any]:
        """By the names of `StepCell`'s fields, of plain values only."""
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
    """Growing counterpart of `snapshot.PromptCell`."""

    drafter: bool
    beside: bool = False
    steps: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    decoded: int = 0
    verified: int = 0


class PromptSums:
    """Growing counterpart of `snapshot.PromptStats`."""

    def __init__(self) -> None:
        self._cells = {key: PromptCellSums(*key) for key in product((False, True), repeat=2)}
        # By request, prompt tokens that it found in the prefix cache.
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
        """A request came in; one that was put off and comes again finds what it has computed itself."""
        self._cached.setdefault(request_id, cached_tokens)

    def end(self, request_id: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request ended; one that never began is not counted."""
        cached = self._cached.pop(request_id, None)
        if cached is not None:
            self._ended_prompt_tokens += max(0, prompt_tokens - cached)
            self._ended_output_tokens += output_tokens

    def plain(self) -> dict[str, Any]:
        """By the names of `PromptStats`' fields, of plain values only."""
        return {
            "cells": [asdict(cell) for cell in self._cells.values() if cell.steps],
            "ended_prompt_tokens": self._ended_prompt_tokens,
            "ended_output_tokens": self._ended_output_tokens,
        }


@dataclass(slots=True)
class RowSums:
    """Growing counterpart of `snapshot.RowCounts`."""

    verified: int = 0
    drafted: int = 0
    unfitted: int = 0

    def add(self, verified: int, drafted: int, unfitted: int) -> None:
        self.verified += verified
        self.drafted += drafted
        self.unfitted += unfitted


class StepSums:
    """One cell for each (batch size, K) seen; at most `max_num_seqs` times `depth_max` + 1 of them."""

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
        """Return the number of this reading, and the cells that changed after the one of number `since`; 0 for all.

        A large engine has thousands of cells, of which a load touches few.
        """
        changed = [cell.plain() for cell in self._cells.values() if cell.changed_at >= since]
        self._readings.count += 1
        return self._readings.count, changed


@dataclass(frozen=True, slots=True)
class CutDraft:
    """A draft of which only the first `verified` tokens went to the target.

    `start` is the index, in the request's tokens, of the position that `tokens[0]` was drafted for; `confidence` the
    drafter's probability of each of `tokens`, None where it is not known.
    """

    cell: CellSums
    start: int
    verified: int
    tokens: Sequence[int]
    confidence: Sequence[float] | None = None


class CutTails:
    """Scores cut tails against what the target emits next: acceptance beyond K, at no verification cost.

    A position counts as reached if every position before it equals the emitted token there, and as matched if it does,
    too; this is what verification would have said, for greedy and for sampled requests alike, because a draft is
    accepted with the probability that the target emits it. It counts once the request has emitted that far, so that a
    request's end removes right and wrong guesses alike and the ratio stays unbiased.

    Holds at most `depth_max` drafts a request: each step emits a token, and a draft is scored `depth_max` tokens on.
    """

    def __init__(self, chances: DraftChances) -> None:
        self._chances = chances
        self._waiting: dict[str, deque[CutDraft]] = {}

    def add(self, request_id: str, draft: CutDraft) -> None:
        self._waiting.setdefault(request_id, deque()).append(draft)

    def settle(self, request_id: str, tokens: Sequence[int]) -> None:
        """Score what `tokens`, all of the request's so far, suffice for."""
        waiting = self._waiting.get(request_id)
        if waiting is None:
            return
        while waiting and waiting[0].start + len(waiting[0].tokens) <= len(tokens):
            self._score(request_id, waiting.popleft(), tokens)
        if not waiting:
            del self._waiting[request_id]

    def finish(self, request_id: str, tokens: Sequence[int]) -> None:
        """Score the rest as far as `tokens` goes, and forget the request."""
        for draft in self._waiting.pop(request_id, ()):
            self._score(request_id, draft, tokens)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waiting(self, request_id: str) -> int:
        """How many of the request's drafts are not scored yet."""
        return len(self._waiting.get(request_id, ()))

    def _score(self, request_id: str, draft: CutDraft, tokens: Sequence[int]) -> None:
        emitted = tokens[draft.start : draft.start + len(draft.tokens)]
        matched = 0
        while matched < len(emitted) and emitted[matched] == draft.tokens[matched]:
            matched += 1
        draft.cell.add_tail(draft.verified, len(emitted), matched)
        self._chances.learn(request_id, draft.confidence, draft.verified, len(emitted), matched)
