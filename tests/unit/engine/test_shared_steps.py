"""Steps shared among clients on the real scheduler: outputs stay the target's, whichever requests rest."""

import random
from pathlib import Path

import pytest

from support.engines.scheduler_core import BLOCK, VOCABULARY, Core, add, continuation, expected, scheduler_of

MANY, FEW, BATCH = ("many", 1.0, False), ("few", 1.0, False), ("many", 1.0, True)


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("kind", ["live", "by_request", "static"])
@pytest.mark.parametrize("blocks", [200, 24], ids=["roomy", "preempting"])
@pytest.mark.parametrize("seed", range(3))
def test_output_is_the_targets_own_while_requests_rest(
    folder: Path, overlapped: bool, kind: str, blocks: int, seed: int
) -> None:
    from vllm.v1.request import RequestStatus

    rng = random.Random(seed)
    to_depth = not overlapped and kind != "static"
    built = scheduler_of(
        folder,
        overlapped,
        blocks,
        skips_drafter=kind != "static",
        drafts_to_depth=to_depth,
        is_live=kind != "static",
        step_tokens=20,
    )
    core = Core(built, overlapped, rng)
    wanted: dict[str, list[int]] = {}
    aborted: set[str] = set()
    version = rested = largest = 0
    while core.busy() or len(wanted) < 60:
        if len(wanted) < 60 and rng.random() < 0.5:
            request_id = f"r{len(wanted)}"
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 130))]
            max_tokens, stop = rng.randint(1, 90), rng.sample(range(VOCABULARY), rng.choice([0, 0, 1]))
            wanted[request_id] = expected(prompt, max_tokens, stop)
            flow = rng.choice([MANY, MANY, FEW, BATCH, None])
            add(core, request_id, prompt, max_tokens, stop, rng.choice([None, None, 1]), flow)
        if kind != "static" and rng.random() < 0.3:
            version += 1
            core.scheduler.set_depths(version, [rng.randint(0, 7) for _ in range(8)], kind == "by_request")
        if rng.random() < 0.02 and core.scheduler.running:
            victim = rng.choice(core.scheduler.running).request_id
            core.scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
            aborted.add(victim)
        if core.busy():
            core.step()
            rested += len(core.scheduler.running) > len(core.worker.last_step)
            largest = max(largest, len(core.worker.last_step))
    for request_id, text in wanted.items():
        emitted = core.emitted.get(request_id, [])
        assert emitted == (text[: len(emitted)] if request_id in aborted else text)
    assert rested > 20
    assert largest <= core.scheduler.max_num_running_reqs
    assert not core.scheduler.running


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_a_client_with_one_request_waits_for_no_more_than_the_step_under_way(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, step_tokens=16), overlapped, random.Random(1))
    for index in range(20):  # 8 of these fill the batch
        add(core, f"many{index}", [index, 2, 3], 200, [], flow=MANY)
    for _ in range(5):
        core.step()
    assert len(core.scheduler.running) == 8
    add(core, "few", [1, 2, 3], 40, [], flow=FEW)
    core.step()
    assert "few" in core.worker.last_step
    steps = 0
    while len(core.emitted.get("few", [])) < 40:
        core.step()
        steps += 1
        assert sum(core.worker.last_step.values()) <= 16
    assert core.emitted["few"] == continuation([1, 2, 3], 40)
    assert steps <= 40


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_prompts_longer_than_a_step_are_admitted_next_to_running_requests(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200, step_tokens=32), overlapped, random.Random(1))
    add(core, "few", [1, 2, 3], 200, [], flow=FEW)
    for index in range(8):
        add(core, f"many{index}", [index] * 40, 100, [], flow=MANY)
    for _ in range(10):  # until no flow is behind
        core.step()
    for _ in range(50):
        core.step()
        assert sum(core.worker.last_step.values()) <= 32
    assert len(core.scheduler.running) > 2


def test_no_request_rests_while_one_client_asks(folder: Path) -> None:
    core = Core(scheduler_of(folder, False, blocks=200, step_tokens=1), False, random.Random(1))
    for index in range(8):
        add(core, f"r{index}", [index, 2, 3], 50, [], flow=MANY)
    while core.busy():
        core.step()
        assert len(core.worker.last_step) >= len(core.scheduler.running)


def test_tokens_are_proportional_to_weights(folder: Path) -> None:
    core = Core(scheduler_of(folder, False, blocks=400, step_tokens=24, depth_static=3), False, random.Random(1))
    for index in range(8):
        add(core, f"heavy{index}", [index, 2, 3], 240, [], flow=("heavy", 3.0, False))
        add(core, f"light{index}", [index, 5, 3], 240, [], flow=("light", 1.0, False))
    for _ in range(200):
        core.step()
    tokens = {name: sum(len(core.emitted.get(f"{name}{each}", ())) for each in range(8)) for name in ("heavy", "light")}
    assert tokens["heavy"] / tokens["light"] == pytest.approx(3.0, rel=0.1)


def test_resting_requests_give_their_blocks_to_scheduled_ones(folder: Path) -> None:
    core = Core(scheduler_of(folder, False, blocks=40, step_tokens=8), False, random.Random(1))
    prompts = {f"many{index}": [index] * 60 for index in range(8)}
    for request_id, prompt in prompts.items():
        add(core, request_id, prompt, 20, [], flow=MANY)
    for _ in range(6):
        core.step()
    free = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    add(core, "few", [9] * 150, 20, [], flow=FEW)
    for _ in range(2 * 150 // 8):
        core.step()
    assert free * BLOCK < 150
    assert core.emitted["few"] == continuation([9] * 150, 20)[: len(core.emitted["few"])] != []
    while core.busy():
        core.step()
    assert all(core.emitted[each] == continuation(prompt, 20) for each, prompt in prompts.items())
