"""A request's own bound of K, on the real schedulers: it holds from the first draft and affects no other request."""

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.engines.scheduler_core import (
    DEPTH_MAX,
    VOCABULARY,
    Core,
    add,
    continuation,
    scheduler_of,
    stats_of,
)

BOTH = pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
PROMPT = [1, 2, 3]


def run(core: Core, bounds: Sequence[int | None], tokens: int = 60) -> dict[int | None, set[int]]:
    """Run requests with these bounds at once; return by bound the numbers of drafts verified while there was room."""
    for bound in bounds:
        add(core, str(bound), PROMPT, tokens, [], bound)
    while core.busy():
        core.step()
    assert all(core.emitted[str(bound)] == continuation(PROMPT, tokens) for bound in bounds)
    # At the end of an answer there is less room than K.
    last = len(PROMPT) + tokens - DEPTH_MAX
    return {
        bound: {count for name, start, _, count in core.worker.seen if name == str(bound) and start < last}
        for bound in bounds
    }


def test_without_parameters_or_a_bound_of_its_own_a_request_has_none() -> None:
    from peagle.engine.depth.depth_bound import bound_of

    asked = [None, SimpleNamespace(extra_args=None), SimpleNamespace(extra_args={"other": 1})]
    assert [bound_of(SimpleNamespace(sampling_params=each)) for each in asked] == [None] * 3  # type: ignore[arg-type]


@BOTH
@pytest.mark.parametrize("is_live", [False, True], ids=["static", "live"])
@pytest.mark.parametrize("skips_drafter", [False, True], ids=["drafting", "skipping"])
def test_each_request_is_verified_to_its_own_bound(
    folder: Path, overlapped: bool, is_live: bool, skips_drafter: bool
) -> None:
    core = Core(
        scheduler_of(folder, overlapped, blocks=200, is_live=is_live, skips_drafter=skips_drafter),
        overlapped,
        random.Random(1),
    )
    verified = run(core, [None, 0, 2, DEPTH_MAX, 99])
    assert verified == {None: {DEPTH_MAX}, 0: {0}, 2: {2}, DEPTH_MAX: {DEPTH_MAX}, 99: {DEPTH_MAX}}
    # In a batch with requests that draft, the drafter computes all of it.
    assert core.worker.gapped <= {"0"}


@BOTH
@pytest.mark.parametrize("is_live", [False, True], ids=["static", "live"])
def test_the_worker_is_told_which_requests_draft_less(folder: Path, overlapped: bool, is_live: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, is_live=is_live), overlapped, random.Random(1))
    add(core, "long", [number % VOCABULARY for number in range(200)], 30, [])
    add(core, "bounded", PROMPT, 30, [], 2)
    core.step()
    assert core.worker.own_depths[0] == {"long": 0}, "more of its prompt is still to come"
    while core.busy():
        core.step()
    assert core.worker.own_depths[1:-3] == [{"bounded": 2}] * len(core.worker.own_depths[1:-3])


@BOTH
def test_the_lower_of_the_table_and_the_bound_holds(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, depth_static=3), overlapped, random.Random(1))
    assert run(core, [None, 1, 5]) == {None: {3}, 1: {1}, 5: {3}}


@BOTH
def test_drafts_cut_by_a_bound_are_not_given_to_other_requests(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200), overlapped, random.Random(1))
    core.scheduler.set_depths(1, [3], by_request=True)
    run(core, [None, 1])
    cells = [cell for cell in stats_of(core).cells if cell.batch_size == 2]
    assert sum(sum(cell.drafted) for cell in cells) <= sum(cell.steps * (3 + 1) for cell in cells)
    assert [cell.spared for cell in cells] == [cell.steps * (3 - 1) for cell in cells]


@BOTH
def test_drafts_cut_by_a_bound_are_not_a_tail_but_those_cut_by_the_table_are(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, depth_static=1), overlapped, random.Random(1))
    run(core, [3])
    cells = stats_of(core).cells
    assert all(sum(cell.drafted[1:]) == 0 for cell in cells)
    tails = [sum(cell.tail_reached[j] for cell in cells) for j in range(DEPTH_MAX)]
    assert [count > 0 for count in tails] == [j in (1, 2) and not overlapped for j in range(DEPTH_MAX)]


@BOTH
def test_counts_of_a_bounded_request_are_what_was_verified(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200), overlapped, random.Random(1))
    run(core, [0, 2])
    for cell in stats_of(core).cells:
        assert sum(cell.drafted[2:]) == sum(cell.tail_reached) == 0
        assert cell.spared == (0 if cell.depth == 0 else cell.steps * (cell.depth - 2))
        assert cell.rested == (cell.steps if cell.batch_size == 2 or cell.depth == 0 else 0)
        # One draft for each of the other request's steps; the last may have no room.
        assert cell.drafts <= cell.steps
    assert {(cell.batch_size, cell.depth) for cell in stats_of(core).cells} >= {(2, DEPTH_MAX), (1, 0)}


@BOTH
def test_where_all_of_a_batch_are_bounded_by_0_no_drafter_runs_until_another_comes(
    folder: Path, overlapped: bool
) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, skips_drafter=True), overlapped, random.Random(1))
    for name in ("a", "b"):
        add(core, name, PROMPT, 60, [], 0)
    for _ in range(10):
        core.step()
    assert core.worker.rested >= 8
    assert core.worker.drafted[0] == DEPTH_MAX, (
        "the drafter runs over a prompt, for later requests that find it in the prefix cache"
    )
    rested = core.worker.rested
    add(core, "drafts", [4, 5, 6], 30, [])
    while "drafts" not in core.emitted or "drafts" in core.scheduler.requests:
        core.step()
    assert core.worker.rested <= rested + 2
    while core.busy():
        core.step()
    assert core.worker.gapped == {"a", "b"}
    assert {name for name, _, _, count in core.worker.seen if count} == {"drafts"}
    assert core.emitted["drafts"] == continuation([4, 5, 6], 30)
    assert core.emitted["a"] == core.emitted["b"] == continuation(PROMPT, 60)
    assert core.scheduler.keeps_nothing


@BOTH
def test_a_drafting_request_finds_only_the_prompt_of_a_rested_one(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, skips_drafter=True), overlapped, random.Random(1))
    prompt = [number % VOCABULARY for number in range(50)]
    add(core, "off", prompt, 60, [], 0)
    while core.busy():
        core.step()
    add(core, "same", prompt, 30, [])
    add(core, "more", prompt + core.emitted["off"], 30, [])
    while core.busy():
        core.step()
    # Of three whole blocks of the prompt vLLM recomputes the last one for the drafter.
    assert core.worker.cached["same"] == 32
    assert core.worker.cached["more"] <= 48, "the drafter has not run after the prompt"


@pytest.mark.parametrize("is_live", [False, True], ids=["static", "live"])
@pytest.mark.parametrize("bound", [None, 0, 3])
def test_a_bounded_request_is_padded_with_no_empty_drafts(folder: Path, bound: int | None, is_live: bool) -> None:
    core = Core(scheduler_of(folder, overlapped=False, blocks=200, is_live=is_live), False, random.Random(1))
    core.scheduler.vllm_config.device_config.device_type = "cuda"
    add(core, "first", PROMPT, 30, [])
    core.step()
    add(core, "second", [1], 30, [], bound)
    output = core.scheduler.schedule()
    assert output.num_scheduled_tokens["second"] == 1 + (DEPTH_MAX if bound is None else 0)
