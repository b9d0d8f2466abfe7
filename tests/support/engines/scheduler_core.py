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

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from peagle.engine.depth.live_depth import step_stats_from_plain
from peagle.engine.patches.step_drafts import DRAFTS, OWN_DEPTHS, ROWS, TELLS, TOLD, UNDRAFTED
from peagle.engine.plugin import scheduler
from peagle.engine.shared_steps import FLOW_ARG
from peagle.router.snapshot import StepStats

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


def write_models(folder: Path) -> Path:
    """Write configurations of a small target and its head into `folder`; weights are never read."""
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
    drafts_to_depth: bool = False,
    is_live: bool = True,
    step_tokens: int = 96,
    sampling: dict[str, Any] | None = None,
) -> Any:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    settings = {"depth_static": depth_static, "skips_drafter": skips_drafter, "drafts_to_depth": drafts_to_depth}
    live = {"live_depth": settings} if is_live else {}
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
            **(sampling or {}),
        },
        additional_config={"peagle": {"step_tokens_shared": step_tokens, "mask_s_max": 0.05, **live}},
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
        # tokens of each request found in the prefix cache
        self.cached: dict[str, int] = {}
        self.drafts: dict[str, list[int]] = {}
        # request, index of the first drafted position, draft and how much of it was verified, for each decode
        self.seen: list[tuple[str, int, list[int], int]] = []
        # draft depth of each step, and requests with a smaller depth
        self.drafted: list[int] = []
        self.own_depths: list[dict[str, int]] = []
        # total rows of the target and of the drafter
        self.rows_verified = self.rows_drafted = 0
        # drafts of the last step, if they are reported
        self.told: dict[str, list[int]] | None = None
        # requests of a step without the drafter, which have a gap in their cache
        self.gapped: set[str] = set()
        self.rested = 0
        # tokens of the last step, by request
        self.last_step: dict[str, int] = {}
        # one in this many steps the drafter has no space, and drafts zeros; 0 for none
        self.undrafted_every = 0
        # reported CUDA graph mode of each step, as on a GPU
        self.ran_as: Any = None

    def run(self, output: Any) -> tuple[Any, Any]:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        self._adopt(output)
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
        self.last_step = dict(output.num_scheduled_tokens)
        if output.num_scheduled_tokens:
            self.drafted.append(output.num_spec_tokens_to_schedule)
            self.own_depths.append(getattr(output, OWN_DEPTHS))
        sampled = [self._step(request_id, output) for request_id in output.num_scheduled_tokens]
        ids = list(output.num_scheduled_tokens)
        if output.num_spec_tokens_to_schedule == 0:
            self.rested += 1
            self.gapped.update(ids)
            self.drafts |= {one: [0] * DEPTH_MAX for one in ids}
        result = ModelRunnerOutput(
            req_ids=ids, req_id_to_index={one: index for index, one in enumerate(ids)}, sampled_token_ids=sampled
        )
        result.cudagraph_stats = self.ran_as
        self._pass_over(output, result)
        if self.overlapped:
            if self.undrafted_every and len(self.drafted) % self.undrafted_every == 0 and self.drafted[-1]:
                setattr(result, UNDRAFTED, True)
                self.drafts |= {one: [0] * DEPTH_MAX for one in ids}
            setattr(result, TOLD, self.told)
            self.told = {one: list(self.drafts[one]) for one in ids} if hasattr(output, TELLS) else None
        drafts = DraftTokenIds(ids, [list(self.drafts[one]) for one in ids])
        # Without a draft model that overlaps, drafts come with the output; they can also be called for.
        if not self.overlapped and output.num_spec_tokens_to_schedule and self.rng.random() < 0.5:
            setattr(result, DRAFTS, drafts)
        return result, drafts

    def _pass_over(self, output: Any, result: Any) -> None:
        self.rows_verified += output.total_num_scheduled_tokens
        if depth := output.num_spec_tokens_to_schedule:
            drafted = [min(depth, self.own_depths[-1].get(one, depth)) for one in output.num_scheduled_tokens]
            rows = output.total_num_scheduled_tokens + sum(max(0, each - 1) for each in drafted)
            self.rows_drafted += rows
            setattr(result, ROWS, (rows, 0))

    def _adopt(self, output: Any) -> None:
        for new in output.scheduled_new_reqs:
            self.tokens[new.req_id] = list(new.prompt_token_ids)
            self.computed[new.req_id] = self.cached[new.req_id] = new.num_computed_tokens
            # vLLM pads a one-token prompt to a whole draft, so that its batch stays uniform for full CUDA graphs.
            self.drafts[new.req_id] = [-1] * DEPTH_MAX
        cached = output.scheduled_cached_reqs
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request_id in cached.resumed_req_ids:
                self.tokens[request_id] = list(cached.all_token_ids[request_id])
                self.computed[request_id] = computed
                self.drafts[request_id] = [-1] * DEPTH_MAX
                self.gapped.discard(request_id)
            elif not self.overlapped:
                assert computed == self.computed[request_id]

    def _step(self, request_id: str, output: Any) -> list[int]:
        tokens, count = self.tokens[request_id], output.num_scheduled_tokens[request_id]
        told = output.scheduled_spec_decode_tokens.get(request_id, [])
        draft = self.drafts[request_id]
        verified = draft[: len(told)]
        if self.ran_as is None or not self.ran_as.takes_uniform_only:  # else some drafts only make a step uniform
            assert VOCABULARY not in verified, "beyond the request's own depth"
            assert not (told and request_id in self.gapped), "over a gap"
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
        depth = output.num_spec_tokens_to_schedule
        own = getattr(output, OWN_DEPTHS).get(request_id, depth)
        # What lies beyond a request's own depth is nobody's to verify.
        self.drafts[request_id] = [*self._draft(tokens)[: min(own, depth)], *[VOCABULARY] * max(0, depth - own)]
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
        # by request: why it ended, and the reason it gives
        self.ended: dict[str, tuple[str, Any]] = {}
        self.now_s = 0.0

    def busy(self) -> bool:
        return bool(self.queue) or self.scheduler.has_requests()

    def step(self) -> None:
        drafts = None
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            result, drafts = self.worker.run(output)
            self.scheduler.get_grammar_bitmask(output)
            self.queue.append((output, result))
            if self.overlapped and len(self.queue) < 2 and output.total_num_scheduled_tokens:
                return
        output, result = self.queue.popleft()
        self.now_s += STEP_S
        for client in self.scheduler.update_from_output(output, result).values():
            for one in client.outputs:
                self.emitted.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.finish_reason is not None:
                    self.ended[one.request_id] = str(one.finish_reason), one.stop_reason
        if drafts is not None and not self.overlapped and not self.scheduler.has_drafts:
            self.scheduler.update_draft_token_ids(drafts)


def add(
    core: Core,
    request_id: str,
    prompt: list[int],
    max_tokens: int,
    stop: list[int],
    depth_max: int | None = None,
    flow: tuple[str, float, bool] | None = None,
    structured_outputs: Any = None,
) -> Any:
    """Add a request, and return it as vLLM's scheduler has it."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    extra: dict[str, Any] = {} if depth_max is None else {DEPTH_MAX_ARG: depth_max}
    if flow is not None:
        extra[FLOW_ARG] = list(flow)
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        ignore_eos=True,
        stop_token_ids=stop,
        extra_args=extra or None,
        structured_outputs=structured_outputs,
    )
    params.update_from_generation_config({}, eos_token_id=VOCABULARY)
    request = Request(request_id, prompt, params, None, block_hasher=core.scheduler.test_block_hasher)
    core.scheduler.add_request(request)
    return request


def expected(prompt: list[int], max_tokens: int, stop: list[int]) -> list[int]:
    text = continuation(prompt, max_tokens)
    ends = [index for index, token in enumerate(text) if token in stop]
    return text[: ends[0] + 1] if ends else text


def stats_of(core: Core) -> StepStats:
    return step_stats_from_plain(core.scheduler.step_stats())
