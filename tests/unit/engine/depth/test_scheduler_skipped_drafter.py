"""With K = 0 for a whole batch the real scheduler skips the drafter, and its requests never draft again."""

import random
from pathlib import Path

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


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_the_drafter_is_skipped_at_k_0_until_a_new_request_arrives(folder: Path, overlapped: bool) -> None:
    core = Core(
        scheduler_of(folder, overlapped, blocks=200, depth_static=0, skips_drafter=True), overlapped, random.Random(1)
    )
    add(core, "old", [1, 2, 3], 60, [])
    for _ in range(6):
        core.step()
    assert core.worker.gapped == {"old"}
    core.scheduler.set_depths(1, [DEPTH_MAX])
    for _ in range(6):
        core.step()
    rested = core.worker.rested
    assert rested > 6, "the first request may not draft any more"
    add(core, "new", [4, 5, 6], 40, [])
    while core.busy():
        core.step()
    verified = {request_id for request_id, _, _, count in core.worker.seen if count}
    assert verified == {"new"}
    assert core.emitted["old"] == continuation([1, 2, 3], 60)
    assert core.emitted["new"] == continuation([4, 5, 6], 40)
    # Steps with both requests are reported, and one of the two was asked for no draft.
    stats = stats_of(core)
    both = [cell for cell in stats.cells if cell.batch_size == 2]
    assert {cell.depth for cell in both} == {DEPTH_MAX}
    assert all(0 < cell.drafts <= cell.steps for cell in both)
    assert all(cell.rested == cell.steps for cell in both)
    assert stats.requested == DEPTH_MAX * stats.drafting_steps
    assert stats.drafts <= stats.drafting_steps < 1.5 * stats.drafts


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize(("requests", "drafts"), [(2, True), (3, False), (12, False)])
def test_the_drafter_runs_over_prompts_if_the_coming_batch_may_draft(
    folder: Path, overlapped: bool, requests: int, drafts: bool
) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, skips_drafter=True), overlapped, random.Random(1))
    core.scheduler.set_depths(1, [DEPTH_MAX, DEPTH_MAX, DEPTH_MAX, 0])
    for index in range(requests):
        add(core, f"r{index}", [1, 2, 3], 20, [])
    core.step()
    assert core.worker.gapped == (set() if drafts else {f"r{index}" for index in range(min(requests, 8))})
    while core.busy():
        core.step()
    assert all(text == continuation([1, 2, 3], 20) for text in core.emitted.values())


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize(
    ("before", "steps", "step_s", "idle_s", "drafts"),
    [
        (6, 0, 0.3, 0.001, False),
        (6, 5, 0.01, 0.0, False),
        (6, 5, 0.3, 0.0, True),
        (6, 0, 0.3, 0.2, True),
        (2, 0, 0.3, 0.001, True),
    ],
    ids=["at once", "after quick steps", "after slow steps", "a while later", "of a few"],
)
def test_requests_after_an_ended_batch_expect_a_batch_of_its_size(
    folder: Path,
    overlapped: bool,
    before: int,
    steps: int,
    step_s: float,
    idle_s: float,
    drafts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, skips_drafter=True), overlapped, random.Random(1))
    monkeypatch.setattr("peagle.engine.depth.scheduler.perf_counter", lambda: core.now_s)
    monkeypatch.setattr("support.engines.scheduler_core.STEP_S", step_s)
    core.scheduler.set_depths(1, [DEPTH_MAX, DEPTH_MAX, DEPTH_MAX, 0])
    for index in range(before):
        add(core, f"r{index}", [1, 2, 3], 20, [])
    if steps:
        add(core, "stays", [1, 2, 3], 100, [])
    while any(f"r{index}" in core.scheduler.requests for index in range(before)):
        core.step()
    for _ in range(steps):
        core.step()
    while core.busy() and not steps:
        core.step()
    core.now_s += idle_s
    add(core, "next", [4, 5, 6], 20, [])
    while core.busy():
        core.step()
    assert ("next" not in core.worker.gapped) == drafts
    assert core.emitted["next"] == continuation([4, 5, 6], 20)


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_a_queue_without_room_does_not_end_any_requests_drafts(folder: Path, overlapped: bool) -> None:
    """Of requests of five blocks each three fit; K is 0 only for a batch size that is never reached."""
    core = Core(scheduler_of(folder, overlapped, blocks=17, skips_drafter=True), overlapped, random.Random(1))
    core.scheduler.set_depths(1, [DEPTH_MAX] * 5 + [0])
    prompts = {f"r{index}": [(index + number) % VOCABULARY for number in range(50)] for index in range(8)}
    for request_id, prompt in prompts.items():
        add(core, request_id, prompt, 20, [])
    while core.busy():
        core.step()
    assert max(cell.batch_size for cell in stats_of(core).cells) == 3
    assert core.worker.gapped == set()
    assert {request_id for request_id, _, _, count in core.worker.seen if count} == set(prompts)


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("ended", [True, False], ids=["after", "beside"])
def test_a_drafting_request_uses_no_cached_blocks_that_the_drafter_has_not_computed(
    folder: Path, overlapped: bool, ended: bool
) -> None:
    core = Core(
        scheduler_of(folder, overlapped, blocks=200, depth_static=0, skips_drafter=True), overlapped, random.Random(1)
    )
    # Three blocks, of which vLLM recomputes the last one for the drafter whenever it drafts.
    prompt = [number % VOCABULARY for number in range(50)]

    def cached_tokens(request_id: str) -> int:
        add(core, request_id, prompt, 30, [])
        while request_id not in core.emitted:
            core.step()
        while ended and core.busy():
            core.step()
        return core.worker.cached[request_id]

    assert cached_tokens("first") == 0
    assert cached_tokens("off") == 32, "without drafts the target's own cache is enough"
    core.scheduler.set_depths(1, [DEPTH_MAX])
    assert cached_tokens("drafts") == 0
    assert cached_tokens("drafts too") == 32
    core.scheduler.set_depths(2, [0])
    assert cached_tokens("off again") == 32
    core.scheduler.set_depths(3, [DEPTH_MAX])
    assert cached_tokens("drafts again") == 32, "the drafter ran over its prompt"
    while core.busy():
        core.step()
    assert core.scheduler.keeps_nothing
    assert all(text == continuation(prompt, 30) for text in core.emitted.values())
