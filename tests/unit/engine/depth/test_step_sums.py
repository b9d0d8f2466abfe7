import random
from typing import Any

import pytest

from peagle.engine.depth.draft_chances import DraftChances
from peagle.engine.depth.live_depth import StepStatsReader, step_stats_from_plain
from peagle.engine.depth.step_sums import CellSums, CutDraft, CutTails, PromptSums, StepSums
from peagle.router.row_counts import RowCounts

DEPTH_MAX = 7


def common_prefix(draft: list[int], emitted: list[int]) -> int:
    length = 0
    for guess, truth in zip(draft, emitted, strict=False):
        if guess != truth:
            break
        length += 1
    return length


def test_tail_counts_only_what_follows_an_unbroken_match() -> None:
    cell, tails = CellSums(1, 2, DEPTH_MAX), CutTails(DraftChances(DEPTH_MAX))
    tails.add("a", CutDraft(cell, start=3, verified=2, tokens=[10, 11, 12, 99, 14, 15, 16]))
    tails.settle("a", [0, 0, 0, 10, 11, 12, 13, 14, 15, 16])
    assert cell.tail_reached == [0, 0, 1, 1, 0, 0, 0]
    assert cell.tail_matched == [0, 0, 1, 0, 0, 0, 0]


def test_tail_behind_a_rejected_draft_is_not_reached() -> None:
    cell, tails = CellSums(1, 2, DEPTH_MAX), CutTails(DraftChances(DEPTH_MAX))
    tails.add("a", CutDraft(cell, start=0, verified=2, tokens=[10, 99, 12, 13, 14, 15, 16]))
    tails.settle("a", [10, 11, 12, 13, 14, 15, 16])
    assert cell.tail_reached == [0] * DEPTH_MAX
    assert cell.tail_matched == [0] * DEPTH_MAX


def test_tail_waits_until_the_request_has_emitted_as_far_as_the_draft() -> None:
    cell, tails = CellSums(1, 0, DEPTH_MAX), CutTails(DraftChances(DEPTH_MAX))
    tails.add("a", CutDraft(cell, start=1, verified=0, tokens=list(range(DEPTH_MAX))))
    tails.settle("a", [9, *range(DEPTH_MAX - 1)])
    assert tails.waiting("a") == 1
    assert cell.tail_reached == [0] * DEPTH_MAX
    tails.settle("a", [9, *range(DEPTH_MAX)])
    assert not tails
    assert cell.tail_matched == [1] * DEPTH_MAX


@pytest.mark.parametrize("right", [True, False])
def test_a_requests_end_removes_right_and_wrong_guesses_alike(right: bool) -> None:
    cell, tails = CellSums(1, 0, DEPTH_MAX), CutTails(DraftChances(DEPTH_MAX))
    tails.add("a", CutDraft(cell, start=1, verified=0, tokens=[1 if right else 2] * DEPTH_MAX))
    tails.finish("a", [0, 1, 1, 1])
    assert cell.tail_reached == ([1, 1, 1, 0, 0, 0, 0] if right else [1, 0, 0, 0, 0, 0, 0])
    assert cell.tail_matched == ([1, 1, 1, 0, 0, 0, 0] if right else [0] * DEPTH_MAX)
    assert not tails


def test_finishing_an_unknown_request_does_nothing() -> None:
    CutTails(DraftChances(DEPTH_MAX)).finish("nobody", [1, 2, 3])


@pytest.mark.parametrize("seed", range(200))
def test_tails_agree_with_a_full_replay(seed: int) -> None:
    rng = random.Random(seed)
    prompt, text = [0] * rng.randint(1, 9), [rng.randint(0, 2) for _ in range(rng.randint(1, 60))]
    tokens, tails, cell = list(prompt), CutTails(DraftChances(DEPTH_MAX)), CellSums(1, 0, DEPTH_MAX)
    expected_reached, expected_matched = [0] * DEPTH_MAX, [0] * DEPTH_MAX
    while len(tokens) < len(prompt) + len(text):
        start, verified = len(tokens), rng.randint(0, DEPTH_MAX - 1)
        draft = [rng.randint(0, 2) for _ in range(rng.randint(verified + 1, DEPTH_MAX))]
        truth = text[start - len(prompt) :][: len(draft)]
        for position in range(verified, len(truth)):
            expected_reached[position] += position <= common_prefix(draft, truth)
            expected_matched[position] += position < common_prefix(draft, truth)
        tails.add("a", CutDraft(cell, start, verified, draft))
        emitted = min(common_prefix(draft[:verified], truth) + 1, len(truth))
        tokens += truth[:emitted] or text[start - len(prompt) :][:1]
        tails.settle("a", tokens)
        assert tails.waiting("a") <= DEPTH_MAX
    tails.finish("a", tokens)
    assert (cell.tail_reached, cell.tail_matched) == (expected_reached, expected_matched)


@pytest.mark.parametrize("seed", range(50))
def test_cells_sum_what_was_added_and_survive_the_way_to_the_client(seed: int) -> None:
    rng = random.Random(seed)
    sums = StepSums(DEPTH_MAX)
    added: dict[tuple[int, int], list[tuple[float, int, int, int, list[tuple[int, int]]]]] = {}
    for _ in range(rng.randint(1, 80)):
        batch_size, depth = rng.randint(1, 4), rng.randint(0, DEPTH_MAX)
        drafts = [(drafted := rng.randint(0, depth), rng.randint(0, drafted)) for _ in range(batch_size)]
        seconds, tokens = rng.random(), rng.randint(1, 40)
        cell = sums.cell(batch_size, depth)
        ended = rng.randint(0, batch_size - 1)
        rested = rng.randint(0, batch_size - ended)
        cell.add_step(seconds, tokens, rested, ended)
        for drafted, accepted in drafts:
            cell.add_draft(drafted, accepted)
        added.setdefault((batch_size, depth), []).append((seconds, tokens, rested, ended, drafts))

    stats = step_stats_from_plain(
        {
            "version": 3,
            "by_request": False,
            "depths": [7, 5],
            "depth_max": DEPTH_MAX,
            "reading": 1,
            "cells": sums.read()[1],
            "prompts": PromptSums().plain(),
            "graphs": {},
            "rows": {"verified": 40, "drafted": 60, "unfitted": 5},
        },
    )
    assert stats.table.depths == (7, 5)
    assert (stats.rows.verified, stats.rows.drafted, stats.rows.unfitted) == (40, 60, 5)
    assert stats.since(stats).rows == RowCounts()
    assert {(cell.batch_size, cell.depth) for cell in stats.cells} == set(added)
    for cell in stats.cells:
        steps = added[cell.batch_size, cell.depth]
        drafts = [draft for *_, some in steps for draft in some]
        assert cell.steps == len(steps)
        assert cell.seconds == pytest.approx(sum(seconds for seconds, *_ in steps))
        assert cell.tokens == sum(tokens for _, tokens, *_ in steps)
        assert cell.rested == sum(rested for _, _, rested, _, _ in steps)
        assert cell.ended == sum(ended for _, _, _, ended, _ in steps)
        assert cell.sequences == cell.batch_size * cell.steps - cell.ended
        assert cell.drafts == len(drafts)
        for position in range(DEPTH_MAX):
            assert cell.drafted[position] == sum(drafted > position for drafted, _ in drafts)
            assert cell.accepted[position] == sum(accepted > position for _, accepted in drafts)
            assert cell.whole[position] == drafts.count((position + 1, position + 1))


class Sums:
    """An engine that only has its sums, and counts the cells that it sends."""

    def __init__(self) -> None:
        self.sums, self.engine_core, self.sent = StepSums(DEPTH_MAX), self, 0

    async def call_utility_async(self, _method: str, since: int) -> Any:
        reading, cells = self.sums.read(since)
        self.sent += len(cells)
        table = {"version": 0, "depths": [7], "by_request": False, "depth_max": DEPTH_MAX}
        return {**table, "reading": reading, "cells": cells, "prompts": PromptSums().plain(), "graphs": {}, "rows": {}}


@pytest.mark.parametrize("seed", range(30))
async def test_repeated_readings_are_complete_although_only_changes_are_sent(seed: int) -> None:
    rng, engine = random.Random(seed), Sums()
    readers = [StepStatsReader(engine) for _ in range(2)]
    for _ in range(60):
        cell = engine.sums.cell(rng.randint(1, 9), rng.randint(0, DEPTH_MAX))
        match rng.randrange(4):
            case 0:
                cell.add_step(rng.random(), rng.randint(1, 40), 0, 0)
            case 1:
                cell.add_draft(drafted := rng.randint(1, DEPTH_MAX), rng.randint(0, drafted))
            case 2:
                cell.add_tail(verified := rng.randint(0, 6), rng.randint(verified, DEPTH_MAX), rng.randint(0, 6))
        if rng.random() < 0.5:
            assert await rng.choice(readers).read() == await StepStatsReader(engine).read()
    for reader in readers:
        await reader.read()
    engine.sent = 0
    engine.sums.cell(3, 3).add_step(0.1, 1, 0, 0)
    assert await readers[0].read() == await readers[1].read()
    assert engine.sent == 2


async def test_a_reading_that_arrives_late_undoes_nothing() -> None:
    engine, answers = Sums(), list[Any]()
    reader = StepStatsReader(engine)
    await reader.read()
    cell = engine.sums.cell(2, 1)
    for _ in range(2):
        cell.add_step(1.0, 1, 0, 0)
        answers.append(await engine.call_utility_async("", 1))

    async def late(_method: str, _since: int) -> Any:
        return answers.pop()

    engine.call_utility_async = late  # type: ignore[method-assign]
    assert [(await reader.read()).cells[0].steps for _ in range(2)] == [2, 2]


def test_a_request_that_comes_in_again_has_computed_its_prompt_all_the_same() -> None:
    sums = PromptSums()
    sums.begin("a", 16)
    sums.begin("a", 90)  # preempted, it finds in the cache what it computed itself
    sums.end("a", 100, 5)
    assert (sums.plain()["ended_prompt_tokens"], sums.plain()["ended_output_tokens"]) == (84, 5)
