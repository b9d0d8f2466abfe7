"""Live depth on the real scheduler: outputs, effective depth and counts, for any drafter and any change of K."""

import random
from pathlib import Path

import pytest

from peagle.bench.engines.made_up import synthetic_acceptance
from peagle.engine.versions import KNOWN_VERSIONS, require_known_vllm
from peagle.errors import ConfigError, StartupError
from support.engines.scheduler_core import (
    DEPTH_MAX,
    STEP_S,
    VOCABULARY,
    Core,
    add,
    continuation,
    expected,
    scheduler_of,
    stats_of,
)


@pytest.mark.parametrize(
    ("overlapped", "to_depth"),
    [(False, False), (True, False), (False, True), (True, True)],
    ids=["plain", "overlapped", "to_depth", "overlapped_to_depth"],
)
@pytest.mark.parametrize("blocks", [200, 24], ids=["roomy", "preempting"])
@pytest.mark.parametrize("skips_drafter", [False, True], ids=["drafting", "skipping"])
@pytest.mark.parametrize(("seed", "by_request"), [*((seed, False) for seed in range(6)), (6, True), (7, True)])
def test_output_is_the_targets_own_while_depth_changes(
    folder: Path,
    overlapped: bool,
    to_depth: bool,
    blocks: int,
    skips_drafter: bool,
    seed: int,
    by_request: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.request import RequestStatus

    rng = random.Random(seed)
    built = scheduler_of(folder, overlapped, blocks, skips_drafter=skips_drafter, drafts_to_depth=to_depth)
    core = Core(built, overlapped, rng)
    monkeypatch.setattr("peagle.engine.depth.scheduler.perf_counter", lambda: core.now_s)
    wanted: dict[str, list[int]] = {}
    aborted: set[str] = set()
    version = preemptions = 0
    while core.busy() or len(wanted) < 40:
        if len(wanted) < 40 and rng.random() < 0.3:
            request_id = f"r{len(wanted)}"
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 130))]
            max_tokens, stop = rng.randint(1, 90), rng.sample(range(VOCABULARY), rng.choice([0, 0, 1]))
            wanted[request_id] = expected(prompt, max_tokens, stop)
            add(core, request_id, prompt, max_tokens, stop, rng.choice([None, None, 0, 1, 3, 99]))
        if rng.random() < 0.3:
            version += 1
            depths = [rng.randint(0, DEPTH_MAX) for _ in range(rng.randint(1, 9))]
            core.scheduler.set_depths(version, depths, by_request)
        if rng.random() < 0.02 and core.scheduler.running:
            victim = rng.choice(core.scheduler.running).request_id
            core.scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
            aborted.add(victim)
        preemptions += sum(request.num_preemptions for request in core.scheduler.waiting)
        if core.busy():
            core.step()
    for request_id, text in wanted.items():
        emitted = core.emitted.get(request_id, [])
        assert emitted == (text[: len(emitted)] if request_id in aborted else text)
    assert bool(preemptions) == (blocks < 100)
    assert bool(core.worker.gapped) == skips_drafter
    rows = stats_of(core).rows
    assert (rows.verified, rows.drafted) == (core.worker.rows_verified, core.worker.rows_drafted)
    drafted = set(core.worker.drafted) - {0}
    if to_depth and (by_request or overlapped):
        assert DEPTH_MAX in drafted
        assert len(drafted) >= 4
    else:
        assert drafted == (set(range(1, DEPTH_MAX + 1)) if to_depth else {DEPTH_MAX})
    assert core.scheduler.keeps_nothing


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("depth", [0, 1, 3, DEPTH_MAX])
def test_only_drafts_to_be_verified_are_made_except_in_one_step_of_eight(
    folder: Path, depth: int, overlapped: bool
) -> None:
    built = scheduler_of(folder, overlapped, blocks=200, depth_static=depth, drafts_to_depth=True)
    core = Core(built, overlapped, random.Random(1))
    for index in range(4):
        add(core, f"r{index}", [index, 2, 3], 200, [])
    while core.busy():
        core.step()
    assert all(core.emitted[f"r{index}"] == continuation([index, 2, 3], 200) for index in range(4))
    # K = 0 keeps the drafter's cache in step.
    steps = len(core.worker.drafted)
    whole = core.worker.drafted.count(DEPTH_MAX) if depth < DEPTH_MAX else steps
    assert set(core.worker.drafted) == {max(1, depth), DEPTH_MAX}
    assert whole == (steps // 8 if depth < DEPTH_MAX else steps)
    stats = stats_of(core)
    assert stats.requested == depth * stats.drafting_steps
    for cell in stats.cells:
        assert cell.drafted == (cell.drafts,) * depth + (0,) * (DEPTH_MAX - depth)
    # Tails are known from steps that drafted Kmax, and agree with all others.
    # At K = 0 one token is still drafted.
    tails = sum(cell.tail_reached[max(1, depth)] for cell in stats.cells if depth < DEPTH_MAX)
    assert (tails > 0) == (depth < DEPTH_MAX)
    assert tails <= 4 * whole


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("depth", [1, 3])
def test_a_whole_draft_tells_what_lies_beyond_k(folder: Path, depth: int, overlapped: bool) -> None:
    built = scheduler_of(folder, overlapped, blocks=200, depth_static=depth, drafts_to_depth=True)
    core = Core(built, overlapped, random.Random(1))
    for index in range(4):
        add(core, f"r{index}", [index, 2, 3], 200, [])
    while core.busy():
        core.step()
    reached, matched = [0] * DEPTH_MAX, [0] * DEPTH_MAX
    for request_id, start, draft, verified in core.worker.seen:
        truth = continuation(core.worker.tokens[request_id][:start], DEPTH_MAX)
        right = next((j for j in range(DEPTH_MAX) if draft[j : j + 1] != truth[j : j + 1]), DEPTH_MAX)
        for position in range(verified, len(draft)):
            if position <= right and start + position < 3 + 200:
                reached[position] += 1
                matched[position] += position < right
    cells = stats_of(core).cells
    assert [sum(cell.tail_reached[j] for cell in cells) for j in range(DEPTH_MAX)] == reached
    assert [sum(cell.tail_matched[j] for cell in cells) for j in range(DEPTH_MAX)] == matched
    assert all(reached[depth:])


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_tails_are_not_scored_if_the_target_accepts_at_random(folder: Path, overlapped: bool) -> None:
    sampling = synthetic_acceptance((0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1))
    built = scheduler_of(folder, overlapped, blocks=200, depth_static=3, drafts_to_depth=True, sampling=sampling)
    core = Core(built, overlapped, random.Random(1))
    for index in range(4):
        add(core, f"r{index}", [index, 2, 3], 200, [])
    while core.busy():
        core.step()
    cells = stats_of(core).cells
    assert DEPTH_MAX in core.worker.drafted
    assert sum(cell.drafted[2] for cell in cells) > 0
    assert not any(sum(cell.tail_reached) for cell in cells)


def test_zeros_of_a_step_in_which_the_drafter_had_no_room_count_as_no_drafts(folder: Path) -> None:
    core = Core(scheduler_of(folder, True, 200, depth_static=3), True, random.Random(1))
    core.worker.undrafted_every = 5
    for index in range(4):
        add(core, f"r{index}", [index, 2, 3], 100, [])
    while core.busy():
        core.step()
    assert all(core.emitted[f"r{index}"] == continuation([index, 2, 3], 100) for index in range(4))
    seen = [draft for _, start, draft, _ in core.worker.seen if start < 3 + 100]
    made = [draft for draft in seen if draft != [0] * DEPTH_MAX]
    assert len(made) < len(seen)
    assert sum(cell.drafted[0] for cell in stats_of(core).cells) == len(made)


def test_a_deeper_k_holds_from_the_next_draft_on(folder: Path) -> None:
    core = Core(scheduler_of(folder, False, 200, depth_static=1, drafts_to_depth=True), False, random.Random(1))
    add(core, "one", [1, 2, 3], 90, [])
    for _ in range(10):
        core.step()
    seen = len(core.worker.seen)
    core.scheduler.set_depths(1, [5])
    for _ in range(4):
        core.step()
    assert [count for _, _, _, count in core.worker.seen[seen:]] == [1, 5, 5, 5]


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("depth", range(DEPTH_MAX + 1))
def test_effective_depth_is_the_requested_one_and_every_count_is_the_workers_own(
    folder: Path, overlapped: bool, depth: int
) -> None:
    rng = random.Random(depth)
    core = Core(scheduler_of(folder, overlapped, blocks=200, depth_static=depth), overlapped, rng)
    for index in range(4):
        add(core, f"r{index}", [rng.randrange(VOCABULARY) for _ in range(5)], 100, [])
    while core.busy():
        core.step()
    cells = stats_of(core).cells
    assert {cell.depth for cell in cells} == {depth}
    drafts = [one for one in core.worker.seen if one[1] < 5 + 100]
    counted = [0] * DEPTH_MAX
    right = [0] * DEPTH_MAX
    for request_id, start, draft, verified in drafts:
        assert verified == depth
        truth = continuation(core.worker.tokens[request_id][:start], DEPTH_MAX)
        match = next((j for j in range(DEPTH_MAX) if draft[j] != truth[j]), DEPTH_MAX)
        for position in range(DEPTH_MAX):
            known = not overlapped and start + position < 5 + 100
            if position < depth or (known and position <= match):
                counted[position] += 1
                right[position] += position < match
    for position in range(DEPTH_MAX):
        drafted, accepted = ("drafted", "accepted") if position < depth else ("tail_reached", "tail_matched")
        assert sum(getattr(cell, drafted)[position] for cell in cells) == counted[position]
        assert sum(getattr(cell, accepted)[position] for cell in cells) == right[position]
    # Each request's first token comes from its prefill, which is not a decode-only step.
    assert sum(cell.tokens for cell in cells) == 4 * (100 - 1)
    assert all(cell.seconds > 0 for cell in cells)


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("depth", [0, DEPTH_MAX])
@pytest.mark.parametrize("skips_drafter", [False, True], ids=["drafting", "skipping"])
def test_requests_that_ended_before_their_output_are_counted_separately(
    folder: Path, overlapped: bool, depth: int, skips_drafter: bool
) -> None:
    """The end of an answer is not known in advance, so the next step computes it once more."""
    core = Core(
        scheduler_of(folder, overlapped, blocks=200, depth_static=depth, skips_drafter=skips_drafter),
        overlapped,
        random.Random(1),
    )
    lengths = (12, 25, 40, 40)
    for index, length in enumerate(lengths):
        prompt = [index + 1] * 3
        add(core, f"r{index}", prompt, 100, [continuation(prompt, length)[-1]])
    while core.busy():
        core.step()
    cells = stats_of(core).cells
    assert sum(cell.tokens for cell in cells) == sum(map(len, core.emitted.values())) - len(lengths)
    assert (sum(cell.ended for cell in cells) > 0) == overlapped
    for cell in cells:
        assert cell.sequences <= cell.tokens <= cell.sequences + sum(cell.accepted)
        assert cell.drafts == (cell.sequences if depth else 0)
    if depth == 0:
        assert all(cell.tokens == cell.sequences for cell in cells)


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_depth_follows_the_batch_size_of_the_step(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200), overlapped, random.Random(1))
    core.scheduler.set_depths(1, [0, 7, 5, 3, 0])
    for index in range(5):
        add(core, f"r{index}", [1, 2, 3], 20 + 20 * index, [])
    while core.busy():
        core.step()
    seen = {(cell.batch_size, cell.depth) for cell in stats_of(core).cells}
    # With overlap, the last step of a request that has just ended still runs at the depth of its batch.
    assert {(1, 7), (2, 5), (3, 3), (4, 0), (5, 0)} <= seen
    if not overlapped:
        assert seen == {(1, 7), (2, 5), (3, 3), (4, 0), (5, 0)}


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_seconds_hold_every_step_and_no_waiting(
    folder: Path, overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.interface import PauseState

    core = Core(scheduler_of(folder, overlapped, blocks=200), overlapped, random.Random(1))
    monkeypatch.setattr("peagle.engine.depth.scheduler.perf_counter", lambda: core.now_s)
    for index in range(3):
        add(core, f"r{index}", [1, 2, 3], 50, [])
        for _ in range(4):
            core.step()
        while core.queue:
            core.step()
        core.scheduler.set_pause_state(PauseState.PAUSED_ALL)
        core.now_s += 1000.0
        core.scheduler.set_pause_state(PauseState.UNPAUSED)
        while core.busy():
            core.step()
        core.now_s += 1000.0
    cells = stats_of(core).cells
    assert sum(cell.steps for cell in cells) > 20
    for cell in cells:
        assert cell.seconds == pytest.approx(cell.steps * STEP_S)


def test_a_draft_that_the_step_had_no_room_for_is_kept_whole(folder: Path) -> None:
    core = Core(scheduler_of(folder, overlapped=False, blocks=200, budget=4), False, random.Random(1))
    scheduler = core.scheduler
    for index in range(6):
        add(core, f"r{index}", [1, 2, 3], 60, [])
    while not all(request.spec_token_ids for request in scheduler.running) or len(scheduler.running) < 6:
        core.step()
    scheduler.max_num_scheduled_tokens = 4
    scheduler.set_depths(1, [1])
    output = scheduler.schedule()
    left_out = [one for one in scheduler.running if one.request_id not in output.num_scheduled_tokens]
    assert left_out
    assert all(len(request.spec_token_ids) == DEPTH_MAX for request in left_out)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("depth", [0, 3, DEPTH_MAX])
def test_a_one_token_prompt_is_padded_only_where_whole_drafts_are_verified_on_a_gpu(
    folder: Path, depth: int, device: str
) -> None:
    core = Core(scheduler_of(folder, overlapped=False, blocks=200, depth_static=depth), False, random.Random(1))
    core.scheduler.vllm_config.device_config.device_type = device
    add(core, "first", [1, 2, 3], 30, [])
    core.step()
    add(core, "second", [1], 30, [])
    output = core.scheduler.schedule()
    # A CPU's kernel would take the padding of a new request for tokens.
    padding = DEPTH_MAX if depth == DEPTH_MAX and device == "cuda" else 0
    assert output.num_scheduled_tokens == {"first": 1 + depth, "second": 1 + padding}
    assert output.num_spec_tokens_to_schedule == DEPTH_MAX


def test_a_refused_table_changes_nothing(folder: Path) -> None:
    scheduler = scheduler_of(folder, overlapped=False, blocks=50, depth_static=5)
    with pytest.raises(ConfigError, match="depth at batch size 1 = 8"):
        scheduler.set_depths(1, [0, 8])
    assert (scheduler.step_stats()["version"], scheduler.step_stats()["depths"]) == (0, [5])


@pytest.mark.parametrize(
    ("version", "overlapped", "kind"),
    [
        ("0.29.0", False, "StaticDepthScheduler"),
        ("0.29.0", True, "AsyncStaticDepthScheduler"),
        ("0.33.1", False, "Scheduler"),
        ("0.33.1", True, "AsyncScheduler"),
    ],
)
def test_a_static_depth_is_served_on_any_vllm_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, overlapped: bool, kind: str
) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", version)
    built = scheduler_of(folder, overlapped, blocks=50, is_live=False)
    assert type(built).__name__ == kind
    # Only without a peagle scheduler does vLLM pad new requests on a CPU as well.
    assert (built.dynamic_sd_lookup is None) == ("Static" not in kind)


def test_an_unknown_vllm_is_refused_with_the_known_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    require_known_vllm()
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    with pytest.raises(StartupError, match=rf"{KNOWN_VERSIONS[0]}\.x, not 0\.33\.1.*live_depth to false"):
        require_known_vllm()


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("depth", [0, DEPTH_MAX])
def test_steps_with_prompts_are_counted_apart_with_what_they_decode_beside(
    folder: Path, overlapped: bool, depth: int
) -> None:
    core = Core(
        scheduler_of(folder, overlapped, blocks=200, depth_static=depth, skips_drafter=True),
        overlapped,
        random.Random(1),
    )
    # Longer than a step's budget, so it is computed in chunks.
    lengths = {"first": 3, "long": 190, "twin": 3}
    for request_id, length in lengths.items():
        add(core, request_id, [7] * length, 30, [])
        for _ in range(3):
            core.step()
    while core.busy():
        core.step()
    stats = stats_of(core)
    alone, beside = stats.prompts.cells
    assert (alone.beside, beside.beside) == (False, True)
    assert alone.drafter == beside.drafter == (depth > 0)
    computed = sum(lengths.values()) - sum(core.worker.cached.values())
    assert alone.prompt_tokens == lengths["first"]
    assert alone.prompt_tokens + beside.prompt_tokens == stats.prompts.ended_prompt_tokens == computed
    assert stats.prompts.ended_output_tokens == 3 * 30
    assert (alone.decoded, alone.verified) == (0, 0)
    assert beside.decoded >= beside.steps >= 3
    assert (beside.verified > 0) == (depth > 0)
    assert alone.seconds > 0
    assert beside.seconds > 0
    again = stats.prompts.since(stats.prompts)
    assert (again.cells, again.ended_prompt_tokens, again.ended_output_tokens) == ((), 0, 0)
