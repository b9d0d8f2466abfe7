"""Graphs of every rung, in vLLM's own model runner and dispatcher: registered, captured, and used by steps.

There is no device here, so graphs are empty. The runner's methods that lay out a batch and run it are replaced by
recorders; every decision is vLLM's.
"""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch
from vllm.compilation.cuda_graph import CUDAGraphStat
from vllm.config import CompilationConfig, CompilationMode, CUDAGraphMode
from vllm.forward_context import BatchDescriptor
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from peagle.engine.graphs.captured_graphs import CapturedGraphs
from peagle.engine.patches.rung_graphs import StepGraph, teach
from peagle.router.graphs import GraphKind

LADDER = [0, 1, 2, 3, 5, 7]
WHOLE = 8
MAX_NUM_SEQS = 16
# Without CUDA FlashAttention replays only uniform batches; Triton's backend replays any.
UNIFORM, ANY_MIX = FlashAttentionBackend, TritonAttentionBackend


class OtherBackend(TritonAttentionBackend):
    @staticmethod
    def get_name() -> str:
        return "OTHER_ATTN"


class Runner(GPUModelRunner):
    """vLLM's runner, as far as it chooses and captures graphs."""

    def __init__(self, budget_s: float = 1e9, live: bool = True, **changes: Any) -> None:
        compilation = CompilationConfig(
            mode=CompilationMode.VLLM_COMPILE,
            cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE,
            cudagraph_capture_sizes=[8, 16, 32, 64, 128],
            max_cudagraph_capture_size=128,
            cudagraph_num_of_warmups=1,
        )
        compilation.set_splitting_ops_for_v1(all2all_backend="naive")
        graphs = {"graphs": {"ladder": LADDER, "s_max": budget_s, "gib_max": 1e9}} if live else {}
        config: dict[str, Any] = {
            "compilation_config": compilation,
            "scheduler_config": SimpleNamespace(max_num_seqs=MAX_NUM_SEQS),
            "parallel_config": SimpleNamespace(
                data_parallel_size=1,
                tensor_parallel_size=1,
                decode_context_parallel_size=1,
                use_ubatching=False,
                world_size=1,
            ),
            "cache_config": SimpleNamespace(kv_sharing_fast_prefill=False),
            "model_config": SimpleNamespace(is_encoder_decoder=False),
            "observability_config": SimpleNamespace(cudagraph_metrics=False),
            "additional_config": {"peagle": {"live_depth": {}, **graphs}},
            "lora_config": None,
            "num_speculative_tokens": WHOLE - 1,
            **changes,
        }
        self.vllm_config = SimpleNamespace(**config)
        for name in ("compilation_config", "parallel_config", "model_config", "scheduler_config", "lora_config"):
            setattr(self, name, config[name])
        self.device = torch.device(changes.get("device", "cuda"))
        self.uniform_decode_query_len = WHOLE
        self.max_num_reqs = MAX_NUM_SEQS
        self.speculative_config = self.kv_cache_config = None
        self.load_config = SimpleNamespace(use_tqdm_on_load=False)
        self.input_batch = SimpleNamespace(lora_id_to_lora_request={})
        self.cudagraph_dispatcher = CudagraphDispatcher(self.vllm_config)
        # A clock that only advances with batches.
        self.now_s = 0.0
        self.laid_out: list[int] = []
        self.warmed_up: list[tuple[int, int]] = []
        self.captured: list[Any] = []
        self.failing: set[Any] = set()

    def resolve(self, *backends: Any) -> None:
        groups = [SimpleNamespace(kv_cache_spec=None) for _ in backends]
        self._check_and_update_cudagraph_mode([{each} for each in backends], groups)

    def capture(self) -> None:
        for mode, descriptors in self.cudagraph_dispatcher.get_capture_descs():
            self._capture_cudagraphs(batch_descriptors=descriptors, cudagraph_runtime_mode=mode)

    def step(self, *lens: int, cascade: bool = False) -> tuple[Any, BatchDescriptor, StepGraph]:
        mode, padded, _, _, stat = self._determine_batch_execution_and_padding(
            num_tokens=sum(lens),
            num_reqs=len(lens),
            num_scheduled_tokens_np=None,
            max_num_scheduled_tokens=max(lens),
            use_cascade_attn=cascade,
        )
        return mode, padded, stat

    def _build_attention_metadata(self, *, max_query_len: int) -> None:
        self.laid_out.append(max_query_len)

    def _dummy_run(self, num_tokens: int, cudagraph_runtime_mode: Any, uniform_decode: bool, **_: Any) -> None:
        query_len = self.uniform_decode_query_len if uniform_decode else num_tokens
        requests = num_tokens // query_len
        mode, padded, *_ = self._determine_batch_execution_and_padding(
            num_tokens=num_tokens,
            num_reqs=requests,
            num_scheduled_tokens_np=None,
            max_num_scheduled_tokens=query_len,
            use_cascade_attn=False,
            force_eager=cudagraph_runtime_mode == CUDAGraphMode.NONE,
            force_uniform_decode=uniform_decode,
            force_has_lora=False,
            force_num_active_loras=0,
        )
        assert mode == cudagraph_runtime_mode, "as vLLM asserts it"
        self._build_attention_metadata(max_query_len=query_len)
        self.now_s += 1.0
        if mode == CUDAGraphMode.NONE:
            self.warmed_up.append((num_tokens, requests))
        elif padded in self.failing:
            raise RuntimeError("out of memory")
        else:
            self.captured.append((mode, padded))


teach(Runner)


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda: (100 << 30, 141 << 30))


def full(*batches: tuple[int, int]) -> set[tuple[Any, BatchDescriptor]]:
    return {
        (CUDAGraphMode.FULL, BatchDescriptor(num_tokens=requests * query_len, num_reqs=requests, uniform=True))
        for requests, query_len in batches
    }


def ready(*backends: Any, **changes: Any) -> Runner:
    runner = Runner(**changes)
    runner.resolve(*backends)
    runner.capture()
    return runner


@pytest.mark.parametrize("backend", [UNIFORM, ANY_MIX], ids=lambda backend: backend.get_name())
def test_every_rung_is_captured_at_every_batch_size_with_a_batch_of_its_own_query_length(backend: Any) -> None:
    runner = ready(backend)
    wanted = full(*((requests, depth + 1) for requests in range(1, 17) for depth in LADDER))
    assert wanted == {each for each in runner.captured if each[0] == CUDAGraphMode.FULL}
    assert len(runner.captured) == len(set(runner.captured))
    assert {(padded.num_tokens, padded.num_reqs) for _, padded in wanted} <= set(runner.warmed_up)
    assert runner.uniform_decode_query_len == WHOLE


def test_a_graph_for_any_mix_is_laid_out_for_the_longest_query_that_may_come() -> None:
    runner = ready(ANY_MIX)
    assert {each for each in runner.laid_out if each <= WHOLE} == {1, 2, 3, 4, 6, 8}
    assert runner.laid_out.count(1) == 2 * MAX_NUM_SEQS, "warmed up and captured at K = 0"
    uniform = ready(UNIFORM)
    assert uniform.laid_out.count(4) == 2 * MAX_NUM_SEQS
    assert runner.laid_out.count(4) == 2 * 2, "two requests of one draft, and one of three"


@pytest.mark.parametrize("backend", [UNIFORM, ANY_MIX], ids=lambda backend: backend.get_name())
def test_a_uniform_step_of_any_rung_takes_its_full_graph(backend: Any) -> None:
    runner = ready(backend)
    for depth in LADDER:
        for requests in range(1, MAX_NUM_SEQS + 1):
            mode, padded, stat = runner.step(*[depth + 1] * requests)
            assert mode == CUDAGraphMode.FULL
            assert padded == BatchDescriptor(requests * (depth + 1), requests, uniform=True)
            assert (stat.kind, stat.is_decode) == (GraphKind.FULL, True)
            assert stat.takes_uniform_only == (backend is UNIFORM)


def test_a_mixed_step_takes_one_where_the_backend_replays_any_mix() -> None:
    mode, padded, stat = ready(ANY_MIX).step(8, 1, 1, 4)
    assert mode == CUDAGraphMode.FULL
    assert padded == BatchDescriptor(num_tokens=14, num_reqs=7, uniform=True)
    assert stat.kind is GraphKind.FULL
    mode, padded, stat = ready(UNIFORM).step(8, 1, 1, 4)
    assert (mode, padded) == (CUDAGraphMode.PIECEWISE, BatchDescriptor(num_tokens=16))
    assert (stat.kind, stat.is_decode, stat.takes_uniform_only) == (GraphKind.PIECEWISE, True, True)


@pytest.mark.parametrize(
    ("lens", "mode", "tokens"),
    [((100, 8), CUDAGraphMode.PIECEWISE, 128), ((200,), CUDAGraphMode.NONE, 200)],
    ids=["piecewise", "none"],
)
def test_a_step_with_a_prompt_runs_as_vllm_has_it(lens: tuple[int, ...], mode: Any, tokens: int) -> None:
    for backend in (UNIFORM, ANY_MIX):
        found, padded, stat = ready(backend).step(*lens)
        assert (found, padded.num_tokens) == (mode, tokens)
        assert not stat.is_decode


def test_a_step_over_a_common_prefix_has_no_full_graph() -> None:
    mode, _, stat = ready(ANY_MIX).step(4, 4, cascade=True)
    assert mode == CUDAGraphMode.PIECEWISE
    assert stat.plain() == CUDAGraphStat(8, 8, 0, str(CUDAGraphMode.PIECEWISE))


def test_before_anything_is_captured_no_step_takes_a_full_graph_of_a_rung() -> None:
    runner = Runner()
    runner.resolve(ANY_MIX)
    assert runner.step(4, 4)[0] == CUDAGraphMode.PIECEWISE


def test_a_graph_that_fails_is_left_out_with_all_behind_it_and_steps_take_another() -> None:
    runner = Runner()
    runner.resolve(UNIFORM)
    last = [each for each in runner.peagle_graphs.planned if each not in runner.peagle_graphs.vital][-1]
    runner.failing = {last}
    runner.capture()
    assert runner.uniform_decode_query_len == WHOLE
    assert runner.peagle_graphs.capturing is None
    assert last not in runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL]
    assert len(runner.captured) > 90
    assert runner.step(*[4] * 16)[0] == CUDAGraphMode.FULL

    broken = Runner()
    broken.resolve(UNIFORM)
    broken.failing = {BatchDescriptor(num_tokens=8, num_reqs=2, uniform=True)}
    broken.capture()
    kept = broken.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL]
    assert broken.peagle_graphs.vital < kept < runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL]
    assert not broken.failing & kept


def test_ranks_of_one_model_end_together_where_capturing_fails() -> None:
    runner = Runner()
    runner.parallel_config.world_size = 2
    runner.resolve(UNIFORM)
    runner.failing = {BatchDescriptor(num_tokens=8, num_reqs=2, uniform=True)}
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.capture()


def test_a_graph_that_vllm_captures_by_itself_and_that_fails_ends_the_start() -> None:
    runner = Runner()
    runner.resolve(UNIFORM)
    runner.failing = {BatchDescriptor(num_tokens=16, num_reqs=2, uniform=True)}
    with pytest.raises(RuntimeError, match="out of memory"):
        runner.capture()


def test_capturing_stops_where_the_budget_turns_out_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    # 101 graphs of 0.12 s are expected to fit, but each takes two seconds.
    runner = Runner(budget_s=40.0)
    monkeypatch.setattr("peagle.engine.patches.rung_graphs.perf_counter", lambda: runner.now_s)
    runner.resolve(UNIFORM)
    runner.capture()
    assert 35.0 <= runner.now_s <= 60.0
    # Captured are vLLM's own graphs and the small ones of every rung, which save most.
    for lens in ([1], [2], [3], [4], [8] * 16):
        assert runner.step(*lens)[0] == CUDAGraphMode.FULL, lens
    kept = runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL]
    assert {(CUDAGraphMode.FULL, each) for each in kept} == {
        each for each in runner.captured if each[0] == CUDAGraphMode.FULL
    }


def test_a_budget_of_nothing_leaves_vllm_s_own_graphs() -> None:
    runner = ready(ANY_MIX, budget_s=0.0)
    assert {each for each in runner.captured if each[0] == CUDAGraphMode.FULL} == full(
        *((n, 8) for n in (1, 2, 4, 8, 16))
    )
    assert runner.step(*[8] * 3)[0] == CUDAGraphMode.FULL
    assert runner.step(4, 4)[2].kind is GraphKind.PIECEWISE


@pytest.mark.parametrize(
    ("backend", "changes"),
    [
        (OtherBackend, {}),
        (ANY_MIX, {"live": False}),
        (ANY_MIX, {"lora_config": SimpleNamespace(max_loras=1, specialize_active_lora=False)}),
        (ANY_MIX, {"model_config": SimpleNamespace(is_encoder_decoder=True)}),
        (ANY_MIX, {"cache_config": SimpleNamespace(kv_sharing_fast_prefill=True)}),
    ],
    ids=["other backend", "as asked", "adapters", "encoder", "shared caches"],
)
def test_unsupported_configurations_are_left_to_vllm_and_counted(backend: Any, changes: dict[str, Any]) -> None:
    runner = Runner(**changes)
    before = {mode: set(keys) for mode, keys in vllm_s_own(changes).items()}
    runner.resolve(backend)
    assert runner.cudagraph_dispatcher.cudagraph_keys == before
    assert isinstance(runner.peagle_graphs, CapturedGraphs)
    assert runner.step(4, 4)[2].kind is GraphKind.PIECEWISE
    assert not runner.step(4, 4)[2].takes_uniform_only


def vllm_s_own(changes: dict[str, Any]) -> dict[Any, Any]:
    """Return the graph keys of an unmodified vLLM runner."""
    runner = Runner(**changes)
    runner.resolve(UNIFORM)
    dispatcher = CudagraphDispatcher(runner.vllm_config)
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE, WHOLE)
    return dispatcher.cudagraph_keys


def test_on_a_cpu_nothing_is_planned_and_steps_are_as_they_were() -> None:
    runner = Runner(device="cpu")
    runner.resolve(ANY_MIX)
    assert runner.peagle_graphs is None
    assert runner.step(4, 4)[2] is None


def test_without_a_live_depth_nothing_is_counted() -> None:
    runner = Runner(additional_config={"peagle": {}})
    runner.resolve(ANY_MIX)
    assert runner.peagle_graphs is None
    assert runner.step(*[8] * 2)[2] is None
