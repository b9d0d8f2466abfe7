"""The real scheduler, both kinds, against a worker that keeps vLLM's contract and nothing else.

The worker's target is a function of the tokens so far, so that every output is known in advance; its drafter is right
now and then. It keeps its own count of computed tokens and its own drafts, and checks what it is told against them.
Asynchronous scheduling needs a GPU in a real engine; here it is the same queue of two steps without one.
"""

import json
import random
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.live_depth import step_stats_from_plain
from peagle.engine.plugin import KNOWN_VERSIONS, require_known_vllm, scheduler
from peagle.engine.step_drafts import DRAFTS
from peagle.errors import ConfigError, StartupError
from peagle.router.snapshot import StepStats

# torch says this of itself while vLLM imports it.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

DEPTH_MAX = 7
VOCABULARY = 64
BLOCK = 16
STEP_S = 0.25


def target(tokens: list[int]) -> int:
    """The next token after `tokens`."""
    return (tokens[-1] * 31 + sum(tokens[-3:]) * 7 + len(tokens)) % VOCABULARY


def continuation(tokens: list[int], count: int) -> list[int]:
    text = list(tokens)
    for _ in range(count):
        text.append(target(text))
    return text[len(tokens) :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations of a small target and its head; weights are never read."""
    folder = tmp_path_factory.mktemp("model")
    common = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "vocab_size": VOCABULARY,
        "dtype": "float32",
    }
    head = {"num_hidden_layers": 1, "draft_vocab_size": VOCABULARY, "ptd_token_id": 1}
    for name, more in {
        "target": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4},
        "head": {"architectures": ["LlamaForCausalLMEagle3"], **head},
    }.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps({**common, **more}))
    return folder


def scheduler_of(
    folder: Path,
    overlapped: bool,
    blocks: int,
    depth_static: int = DEPTH_MAX,
    budget: int = 96,
    skips_drafter: bool = False,
    is_live: bool = True,
) -> Any:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    settings = {"depth_static": depth_static, "skips_drafter": skips_drafter}
    config = EngineArgs(
        model=str(folder / "target"),
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=budget + 8 * (DEPTH_MAX + 1),
        enforce_eager=True,
        block_size=BLOCK,
        speculative_config={
            "method": "eagle3",
            "model": str(folder / "head"),
            "num_speculative_tokens": DEPTH_MAX,
            "parallel_drafting": True,
        },
        additional_config={"peagle": settings} if is_live else {},
    ).create_engine_config()
    config.scheduler_config.async_scheduling = overlapped
    config.cache_config.num_gpu_blocks = blocks
    group = KVCacheGroupSpec(
        ["layer"], FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float32)
    )
    init_none_hash(hash)
    built = scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )
    built.test_block_hasher = get_request_block_hasher(BLOCK, lambda value: str(value).encode())
    return built


class Worker:
    """Runs steps in their order. Holds each request's tokens, how many of them are computed, and its next draft."""

    def __init__(self, overlapped: bool, rng: random.Random) -> None:
        self.overlapped, self.rng = overlapped, rng
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.drafts: dict[str, list[int]] = {}
        # request, index of the first drafted position, draft and how much of it was verified, for each decode
        self.seen: list[tuple[str, int, list[int], int]] = []
        # who took part in a step without the drafter, and has a gap in its cache
        self.gapped: set[str] = set()
        self.rested = 0

    def run(self, output: Any) -> tuple[Any, Any]:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        self._adopt(output)
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
        assert output.num_spec_tokens_to_schedule in (0, DEPTH_MAX)
        sampled = [self._step(request_id, output) for request_id in output.num_scheduled_tokens]
        ids = list(output.num_scheduled_tokens)
        if output.num_spec_tokens_to_schedule == 0:
            self.rested += 1
            self.gapped.update(ids)
            self.drafts |= {one: [0] * DEPTH_MAX for one in ids}
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={one: index for index, one in enumerate(ids)}, sampled_token_ids=sampled
        )
        drafts = DraftTokenIds(ids, [list(self.drafts[one]) for one in ids])
        # Without a draft model that overlaps, drafts come with the output; they can also be called for.
        if not self.overlapped and output.num_spec_tokens_to_schedule and self.rng.random() < 0.5:
            setattr(result, DRAFTS, drafts)
        return result, drafts

    def _adopt(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            self.tokens[new.req_id] = list(new.prompt_token_ids)
            self.computed[new.req_id] = new.num_computed_tokens
            # vLLM pads a one-token prompt to a whole draft, so that its batch stays uniform for full CUDA graphs.
            self.drafts[new.req_id] = [-1] * DEPTH_MAX
        cached = output.scheduled_cached_reqs
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request_id in cached.resumed_req_ids:
                self.tokens[request_id] = list(cached.all_token_ids[request_id])
                self.computed[request_id] = computed
                self.drafts[request_id] = [-1] * DEPTH_MAX
            elif not self.overlapped:
                assert computed == self.computed[request_id]

    def _step(self, request_id: str, output: Any) -> list[int]:
        tokens, count = self.tokens[request_id], output.num_scheduled_tokens[request_id]
        told = output.scheduled_spec_decode_tokens.get(request_id, [])
        draft = self.drafts[request_id]
        verified = draft[: len(told)]
        assert not (told and request_id in self.gapped)
        assert told == ([-1] * len(told) if self.overlapped else verified)
        end = self.computed[request_id] + count - len(told)
        assert end <= len(tokens)
        if end < len(tokens):
            assert not told
            self.computed[request_id] = end
            return []
        if -1 not in draft and count == 1 + len(told):
            self.seen.append((request_id, len(tokens), draft, len(told)))
        emitted = []
        for guess in [*verified, None]:
            emitted.append(target(tokens + emitted))
            if emitted[-1] != guess:
                break
        tokens += emitted
        self.computed[request_id] = end + len(emitted) - 1
        self.drafts[request_id] = self._draft(tokens)
        return list(emitted)

    def _draft(self, tokens: list[int]) -> list[int]:
        truth = continuation(tokens, DEPTH_MAX)
        return [token if self.rng.random() < 0.7 else (token + 1) % VOCABULARY for token in truth]


class Core:
    """The engine core's step, as vLLM does it, plain or with a queue of two steps."""

    def __init__(self, scheduler: Any, overlapped: bool, rng: random.Random) -> None:
        self.scheduler, self.overlapped, self.worker = scheduler, overlapped, Worker(overlapped, rng)
        self.queue: deque[Any] = deque()
        self.emitted: dict[str, list[int]] = {}
        self.now_s = 0.0

    def busy(self) -> bool:
        return bool(self.queue) or self.scheduler.has_requests()

    def step(self) -> None:
        drafts = None
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            result, drafts = self.worker.run(output)
            self.queue.append((output, result))
            if self.overlapped and len(self.queue) < 2 and output.total_num_scheduled_tokens:
                return
        output, result = self.queue.popleft()
        self.now_s += STEP_S
        for client in self.scheduler.update_from_output(output, result).values():
            for one in client.outputs:
                self.emitted.setdefault(one.request_id, []).extend(one.new_token_ids)
        if drafts is not None and not self.overlapped and not self.scheduler.has_drafts:
            self.scheduler.update_draft_token_ids(drafts)


def add(core: Core, request_id: str, prompt: list[int], max_tokens: int, stop: list[int]) -> None:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, stop_token_ids=stop)
    params.update_from_generation_config({}, eos_token_id=VOCABULARY)
    core.scheduler.add_request(Request(request_id, prompt, params, None, block_hasher=core.scheduler.test_block_hasher))


def expected(prompt: list[int], max_tokens: int, stop: list[int]) -> list[int]:
    text = continuation(prompt, max_tokens)
    ends = [index for index, token in enumerate(text) if token in stop]
    return text[: ends[0] + 1] if ends else text


def stats_of(core: Core) -> StepStats:
    return step_stats_from_plain(core.scheduler.step_stats())


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("blocks", [200, 24], ids=["roomy", "preempting"])
@pytest.mark.parametrize("skips_drafter", [False, True], ids=["drafting", "skipping"])
@pytest.mark.parametrize("seed", range(6))
def test_output_is_the_targets_own_while_depth_changes(
    folder: Path, overlapped: bool, blocks: int, skips_drafter: bool, seed: int
) -> None:
    from vllm.v1.request import RequestStatus

    rng = random.Random(seed)
    core = Core(scheduler_of(folder, overlapped, blocks, skips_drafter=skips_drafter), overlapped, rng)
    wanted: dict[str, list[int]] = {}
    aborted: set[str] = set()
    version = preemptions = 0
    while core.busy() or len(wanted) < 40:
        if len(wanted) < 40 and rng.random() < 0.3:
            request_id = f"r{len(wanted)}"
            prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 130))]
            max_tokens, stop = rng.randint(1, 90), rng.sample(range(VOCABULARY), rng.choice([0, 0, 1]))
            wanted[request_id] = expected(prompt, max_tokens, stop)
            add(core, request_id, prompt, max_tokens, stop)
        if rng.random() < 0.3:
            version += 1
            core.scheduler.set_depths(version, [rng.randint(0, DEPTH_MAX) for _ in range(rng.randint(1, 9))])
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
    assert not core.scheduler._tails
    assert not core.scheduler._steps
    assert not core.scheduler._gapped


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_where_nobody_drafts_the_drafter_rests_until_a_new_request_comes(folder: Path, overlapped: bool) -> None:
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
    assert rested > 6, "the one request may not draft any more"
    add(core, "new", [4, 5, 6], 40, [])
    while core.busy():
        core.step()
    verified = {request_id for request_id, _, _, count in core.worker.seen if count}
    assert verified == {"new"}
    assert core.emitted["old"] == continuation([1, 2, 3], 60)
    assert core.emitted["new"] == continuation([4, 5, 6], 40)
    # Steps of both say nothing of a depth: there was one with the old request alone, at K = 0, and then of both.
    assert {cell.depth for cell in stats_of(core).cells if cell.batch_size == 2} == set()


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
            if position < depth or (not overlapped and start + position < 5 + 100):
                counted[position] += 1
                right[position] += position < match
    for position in range(DEPTH_MAX):
        drafted, accepted = ("drafted", "accepted") if position < depth else ("tail_drafted", "tail_matched")
        assert sum(getattr(cell, drafted)[position] for cell in cells) == counted[position]
        assert sum(getattr(cell, accepted)[position] for cell in cells) == right[position]
    # Each request's first token comes from its prefill, which is no decode-only step.
    assert sum(cell.tokens for cell in cells) == 4 * (100 - 1)
    assert all(cell.seconds > 0 for cell in cells)


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_depth_follows_the_batch_size_of_the_step(folder: Path, overlapped: bool) -> None:
    core = Core(scheduler_of(folder, overlapped, blocks=200), overlapped, random.Random(1))
    core.scheduler.set_depths(1, [0, 7, 5, 3, 0])
    for index in range(5):
        add(core, f"r{index}", [1, 2, 3], 20 + 20 * index, [])
    while core.busy():
        core.step()
    seen = {(cell.batch_size, cell.depth) for cell in stats_of(core).cells}
    # Overlapped, the last step of a request that has just ended still runs, at the depth of the batch it was part of.
    assert {(1, 7), (2, 5), (3, 3), (4, 0), (5, 0)} <= seen
    if not overlapped:
        assert seen == {(1, 7), (2, 5), (3, 3), (4, 0), (5, 0)}


@pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])
def test_seconds_hold_every_step_and_no_waiting(
    folder: Path, overlapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.interface import PauseState

    core = Core(scheduler_of(folder, overlapped, blocks=200), overlapped, random.Random(1))
    monkeypatch.setattr("peagle.engine.scheduler.perf_counter", lambda: core.now_s)
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


@pytest.mark.parametrize("depth", [0, 3, DEPTH_MAX])
def test_a_one_token_prompt_is_padded_only_where_whole_drafts_are_verified(folder: Path, depth: int) -> None:
    core = Core(scheduler_of(folder, overlapped=False, blocks=200, depth_static=depth), False, random.Random(1))
    add(core, "first", [1, 2, 3], 30, [])
    core.step()
    add(core, "second", [1], 30, [])
    output = core.scheduler.schedule()
    assert output.num_scheduled_tokens == {"first": 1 + depth, "second": 1 + (depth if depth == DEPTH_MAX else 0)}
    assert output.num_spec_tokens_to_schedule == DEPTH_MAX


def test_a_refused_table_changes_nothing(folder: Path) -> None:
    scheduler = scheduler_of(folder, overlapped=False, blocks=50, depth_static=5)
    with pytest.raises(ConfigError, match="depth at batch size 1 = 8"):
        scheduler.set_depths(1, [0, 8])
    assert (scheduler.step_stats()["version"], scheduler.step_stats()["depths"]) == (0, [5])


@pytest.mark.parametrize(
    ("version", "overlapped", "kind"),
    [("0.29.0", False, "DraftTakingScheduler"), ("0.29.0", True, "AsyncScheduler"), ("0.33.1", False, "Scheduler")],
)
def test_a_static_depth_is_served_whatever_vllm_this_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, overlapped: bool, kind: str
) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", version)
    built = scheduler_of(folder, overlapped, blocks=50, is_live=False)
    assert type(built).__name__ == kind


def test_an_unknown_vllm_is_refused_with_the_known_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    require_known_vllm()
    monkeypatch.setattr(vllm, "__version__", "0.33.1")
    with pytest.raises(StartupError, match=rf"{KNOWN_VERSIONS[0]}\.x, not 0\.33\.1.*live_depth to false"):
        require_known_vllm()
