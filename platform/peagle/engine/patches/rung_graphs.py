"""Full CUDA graphs for decode steps at every K of the ladder, on vLLM's first model runner.

vLLM captures full graphs for full drafts, Kmax + 1 tokens of each request. A step at any other K has none. Here each
rung of the ladder has its own graphs at a spread of batch sizes (`peagle.router.graphs`), and a step is padded in
requests. The kind of graph travels to the scheduler with the step's output.

- If the attention backend replays any mix of query lengths, a graph is captured for the longest possible query, so it
  also covers steps whose requests verify different numbers of drafts.
- vLLM's own graphs are captured first and kept. If another capture fails, it is left out with a warning, together with
  all later ones. So are graphs that exceed the budget. Ranks that hold parts of one model replay the same graphs.
- Configurations that are not known to work (unknown backends, adapters, data parallelism, ...) are left to vLLM.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from vllm.compilation.cuda_graph import CUDAGraphStat
from vllm.config import CUDAGraphMode
from vllm.forward_context import BatchDescriptor
from vllm.logger import init_logger

from peagle.engine.arguments import LIVE_DEPTH, settings_of
from peagle.engine.graphs.captured_graphs import CapturedGraphs
from peagle.engine.graphs.graph_arguments import GRAPHS, graph_budget, graph_ladder
from peagle.router.graphs import Graph, GraphBudget, GraphCost, GraphKind, GraphLimits, GraphSupport, plan_graphs

# A logger under vLLM's name, because a worker configures its level and handler.
_LOG = init_logger("vllm.peagle.rung_graphs")
_MARK = "_peagle_rung_graphs"
_GIB = 1 << 30
# Attention backends whose step layout is known to work with graphs of any query length.
KNOWN_BACKENDS = frozenset({"FLASH_ATTN", "TRITON_ATTN", "FLASHINFER"})
_KINDS = {
    CUDAGraphMode.FULL: GraphKind.FULL,
    CUDAGraphMode.PIECEWISE: GraphKind.PIECEWISE,
    CUDAGraphMode.NONE: GraphKind.NONE,
}


@dataclass(frozen=True)
class StepGraph(CUDAGraphStat):  # type: ignore[misc]  # vLLM's has no types
    """vLLM's statistic of a step's padding, and more. A decode step's requests compute at most a full draft."""

    kind: GraphKind
    is_decode: bool
    takes_uniform_only: bool

    def plain(self) -> CUDAGraphStat:
        """Return vLLM's part."""
        return CUDAGraphStat(self.num_unpadded_tokens, self.num_padded_tokens, self.num_paddings, self.runtime_mode)


def install() -> None:
    """Patch this process's model runner. Idempotent."""
    # Imported here: the scheduler's process has no model, and the import takes seconds.
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if not hasattr(GPUModelRunner, _MARK):
        teach(GPUModelRunner)
        setattr(GPUModelRunner, _MARK, True)


def teach(runner_class: Any) -> None:
    """Add graphs for each rung to a class of model runners. A CPU runner has none and behaves as before."""
    runner_class.peagle_graphs = None
    for method, wrap in _WRAPPERS.items():
        replaced = getattr(runner_class, method)
        setattr(runner_class, method, functools.wraps(replaced)(wrap(replaced)))


def graphs_of(runner: Any, attention_backends: Iterable[Iterable[Any]], kv_cache_groups: Iterable[Any]) -> Any:
    """Plan a runner's graphs and register them for capture by vLLM; None on a CPU, or without graphs."""
    dispatcher = runner.cudagraph_dispatcher
    if runner.device.type == "cpu" or dispatcher.cudagraph_mode == CUDAGraphMode.NONE:
        return None
    builders = [
        (backend, group.kv_cache_spec)
        for backends, group in zip(attention_backends, kv_cache_groups, strict=True)
        for backend in backends
    ]
    config = runner.vllm_config
    settings = settings_of(config)
    if LIVE_DEPTH not in settings:  # No one reads the kind of graph.
        return None
    why = _left_to_vllm(runner, {backend.get_name() for backend, _ in builders}) if GRAPHS in settings else "as asked"
    found = (backend.get_builder_cls().get_cudagraph_support(config, spec).value for backend, spec in builders)
    support = GraphSupport(min(found, default=GraphSupport.ALWAYS.value))
    sequences = config.scheduler_config.max_num_seqs
    # Beyond vLLM's own bound FlashAttention 3 uses a layout that a graph cannot replay.
    tokens_max = config.compilation_config.max_cudagraph_capture_size
    if why:
        _LOG.info_once("Only vLLM's own CUDA graphs are captured: %s", why)
        limits = GraphLimits((runner.uniform_decode_query_len - 1,), sequences, tokens_max)
        return CapturedGraphs(limits, support, GraphBudget(0.0, 0.0), {})
    limits = GraphLimits(graph_ladder(settings[GRAPHS]), sequences, tokens_max)
    budget = graph_budget(settings[GRAPHS])
    planned = {descriptor(graph): graph for graph in plan_graphs(limits, support, budget, GraphCost()).graphs}
    vital = dispatcher.cudagraph_keys[CUDAGraphMode.FULL].intersection(planned)
    for each in planned:
        dispatcher.add_cudagraph_key(CUDAGraphMode.FULL, each)
    return CapturedGraphs(limits, support, budget, planned, vital)


def _left_to_vllm(runner: Any, backends: set[str]) -> str:
    """Return why a runner keeps to vLLM's own graphs; empty if it does not."""
    config = runner.vllm_config
    compilation, parallel = config.compilation_config, config.parallel_config
    mode = runner.cudagraph_dispatcher.cudagraph_mode
    reasons = {
        "full graphs are off, or are of all steps": mode.decode_mode() != CUDAGraphMode.FULL
        or not mode.separate_routine(),
        "there are adapters": config.lora_config is not None,
        "data is parallel": parallel.data_parallel_size > 1,
        "steps are split in two": parallel.use_ubatching,
        "contexts are spread over ranks": parallel.decode_context_parallel_size > 1,
        "sequences are parallel": compilation.pass_config.enable_sp,
        "the model encodes first": config.model_config.is_encoder_decoder,
        "prompts share layers' caches": config.cache_config.kv_sharing_fast_prefill,
    }
    unknown = sorted(backends - KNOWN_BACKENDS)
    return next((why for why, holds in reasons.items() if holds), f"of {', '.join(unknown)}" if unknown else "")


def descriptor(graph: Graph) -> Any:
    """Return vLLM's key of a graph."""
    return BatchDescriptor(num_tokens=graph.tokens, num_reqs=graph.requests, uniform=True)


def _planning(resolve: Any) -> Any:
    def check_and_update(runner: Any, attention_backends: Any, kv_cache_groups: Any, *args: Any, **kwargs: Any) -> None:
        resolve(runner, attention_backends, kv_cache_groups, *args, **kwargs)
        runner.peagle_graphs = graphs_of(runner, attention_backends, kv_cache_groups)

    return check_and_update


def _choosing(determine: Any) -> Any:
    def determine_batch(
        runner: Any, *, num_tokens: int, num_reqs: int, max_num_scheduled_tokens: int, **kwargs: Any
    ) -> Any:
        graphs: CapturedGraphs | None = runner.peagle_graphs
        eager = kwargs.get("force_eager")
        if graphs is not None and graphs.capturing is not None and not eager:
            return CUDAGraphMode.FULL, descriptor(graphs.capturing), False, None, None
        # vLLM's dummy runs set `force_uniform_decode`; they are not steps.
        is_step = graphs is not None and not eager and kwargs.get("force_uniform_decode") is None
        if graphs is not None and is_step and not kwargs["use_cascade_attn"]:
            graph = graphs.choose(num_reqs, num_tokens, int(max_num_scheduled_tokens), _LOG.info)
            if graph is not None:
                found = CUDAGraphMode.FULL, descriptor(graph), False, None, None
                return _with_stat(graphs, found, num_tokens, max_num_scheduled_tokens)
        found = determine(
            runner,
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            max_num_scheduled_tokens=max_num_scheduled_tokens,
            **kwargs,
        )
        if graphs is None or not is_step:
            return found
        return _with_stat(graphs, found, num_tokens, max_num_scheduled_tokens)

    return determine_batch


def _with_stat(graphs: CapturedGraphs, found: Any, tokens: int, query_max: int) -> Any:
    mode, padded, split, tokens_across, _ = found
    paddings = padded.num_tokens - tokens
    is_decode = graphs.is_decode(query_max)
    stat = StepGraph(tokens, padded.num_tokens, paddings, str(mode), _KINDS[mode], is_decode, graphs.takes_uniform_only)
    return mode, padded, split, tokens_across, stat


def _laying_out(build: Any) -> Any:
    def build_attention_metadata(runner: Any, *args: Any, **kwargs: Any) -> Any:
        graphs: CapturedGraphs | None = runner.peagle_graphs
        if graphs is not None and graphs.capturing is not None:
            # The longest possible query, instead of that of the captured batch.
            kwargs["max_query_len"] = graphs.capturing.query_max
        return build(runner, *args, **kwargs)

    return build_attention_metadata


def _capturing(capture: Any) -> Any:
    def warmup_and_capture(runner: Any, desc: Any, cudagraph_runtime_mode: Any, **kwargs: Any) -> None:
        graphs: CapturedGraphs | None = runner.peagle_graphs
        graph = graphs.planned.get(desc) if graphs is not None else None
        if graphs is None or graph is None or cudagraph_runtime_mode != CUDAGraphMode.FULL:
            capture(runner, desc, cudagraph_runtime_mode, **kwargs)
            return
        full_len = runner.uniform_decode_query_len
        runner.uniform_decode_query_len, graphs.capturing = graph.query_len, graph
        try:
            capture(runner, desc, cudagraph_runtime_mode, **kwargs)
        except Exception:
            # Ranks of one model capture together: if one fails, the others would wait for it.
            if desc in graphs.vital or runner.parallel_config.world_size > 1:
                raise
            graphs.failed = True
            runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL].discard(desc)
            _LOG.warning("Capturing CUDA graph %s failed. Steps that need it run without it", desc, exc_info=True)
        finally:
            runner.uniform_decode_query_len, graphs.capturing = full_len, None

    return warmup_and_capture


def _capturing_all(capture_all: Any) -> Any:
    def capture_cudagraphs(
        runner: Any, batch_descriptors: list[Any], cudagraph_runtime_mode: Any, **kwargs: Any
    ) -> None:
        graphs: CapturedGraphs | None = runner.peagle_graphs
        if graphs is None or not graphs.planned:
            capture_all(runner, batch_descriptors, cudagraph_runtime_mode, **kwargs)
            return
        graphs.begin(perf_counter(), free_gib())
        if cudagraph_runtime_mode != CUDAGraphMode.FULL:
            capture_all(runner, batch_descriptors, cudagraph_runtime_mode, **kwargs)
            return
        others = [each for each in batch_descriptors if each not in graphs.planned]
        capture_all(runner, others, cudagraph_runtime_mode, **kwargs)
        capture_planned(runner, graphs, **kwargs)

    return capture_cudagraphs


_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "_check_and_update_cudagraph_mode": _planning,
    "_determine_batch_execution_and_padding": _choosing,
    "_build_attention_metadata": _laying_out,
    "_warmup_and_capture": _capturing,
    "_capture_cudagraphs": _capturing_all,
}


def capture_planned(runner: Any, graphs: CapturedGraphs, profiler: Any = None) -> None:
    """Capture the planned graphs within the budget, and log the result."""
    keys, planned = runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL], graphs.planned
    # With several ranks no budget check, since they would stop at different graphs.
    is_alone = runner.parallel_config.world_size == 1
    for desc in sorted(planned, key=lambda desc: desc not in graphs.vital):
        if is_alone and desc not in graphs.vital and not graphs.may_go_on(perf_counter(), free_gib()):
            keys.discard(desc)
            continue
        runner._warmup_and_capture(desc, cudagraph_runtime_mode=CUDAGraphMode.FULL, profiler=profiler)
        torch.accelerator.synchronize()
    if not is_alone:
        keys.intersection_update(_on_every_rank(keys))
    full_len = runner.uniform_decode_query_len
    graphs.finish(planned.get(desc) or Graph(desc.num_tokens, desc.num_reqs, full_len) for desc in keys if desc.uniform)
    captured = len(keys.intersection(planned))
    seconds, gib = graphs.spent(perf_counter(), free_gib())
    _LOG.info(
        "Captured %d full CUDA graphs of decode steps, of %d graphs in all, in %.0f s and %.2f GiB; left out: %s",
        captured,
        sum(map(len, runner.cudagraph_dispatcher.cudagraph_keys.values())),
        seconds,
        gib,
        graphs.left_out() or "none of the served batches",
    )
    if captured < len(planned):
        _LOG.warning(
            "%d of %d full CUDA graphs were not captured: see warnings above, or raise speculation.graph_s_max and "
            "graph_gib_max",
            len(planned) - captured,
            len(planned),
        )


def free_gib() -> float:
    """Return the device's free memory."""
    return float(torch.accelerator.get_memory_info()[0]) / _GIB


def _on_every_rank(keys: set[Any]) -> set[Any]:
    """Return the graphs captured on all ranks: a rank with different padding would wait for the others forever."""
    from vllm.distributed.parallel_state import get_world_group

    group = get_world_group()
    found: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(found, keys, group=group.cpu_group)
    return set.intersection(*found)
