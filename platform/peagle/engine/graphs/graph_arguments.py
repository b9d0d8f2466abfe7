"""Converts a deployment's CUDA graph settings to vLLM arguments and worker settings. Imports no vllm."""

from collections.abc import Mapping
from typing import Any

from peagle.config import Deployment
from peagle.router.depth.drafter_rows import decode_rows_max
from peagle.router.depth.ladder import depth_ladder
from peagle.router.graphs import GraphBudget, GraphCost, GraphLimits, GraphPlan, GraphSupport, plan_graphs

GRAPHS = "graphs"
"""Key of the settings by which a worker plans its graphs."""
SIZES, MAX_SIZE, COMPILATION = "cudagraph_capture_sizes", "max_cudagraph_capture_size", "compilation_config"
# vLLM's default tokens of a step on an H100. With a smaller limit it drops larger sizes.
_STEP_TOKENS = 8192
_WITHOUT_FULL_GRAPHS = ("NONE", "PIECEWISE")


def graph_settings(deployment: Deployment) -> dict[str, Any]:
    """Return the settings of a worker that captures graphs for each K; empty if only vLLM's own are used."""
    speculation = deployment.speculation
    if not _has_rungs(deployment) or why_not_full(deployment.engine):
        return {}
    ladder = depth_ladder(speculation.depth_max, static=speculation.depth_static)
    return {
        GRAPHS: {"ladder": list(ladder), "s_max": speculation.graph_s_max, "gib_max": speculation.graph_gib_max},
    }


def capture_sizes(deployment: Deployment, max_num_seqs: int) -> dict[str, Any]:
    """Return vLLM's argument for piecewise graphs, which also bounds full ones; empty if the file sets its own.

    vLLM's own default ends at 512 tokens, or 1,024 on Blackwell.
    """
    if names_sizes(deployment.engine):
        return {}
    plan = planned(deployment, max_num_seqs)
    return {SIZES: list(plan.sizes)} if plan is not None and plan.sizes else {}


def planned(deployment: Deployment, max_num_seqs: int) -> GraphPlan | None:
    """Return the graphs that workers are expected to capture; None if only vLLM's own are used.

    Which mixes of depths have a graph depends on the attention backend, which vLLM chooses on the device. This assumes
    a backend that replays only uniform batches; the others capture as many graphs.
    """
    settings = graph_settings(deployment)
    if not settings:
        return None
    given = deployment.engine.get("max_num_batched_tokens")
    ladder = graph_ladder(settings[GRAPHS])
    # The largest useful size is the drafter's maximum rows, rounded up to full drafts of the target. vLLM also limits
    # it to a step's tokens.
    full_len = ladder[-1] + 1
    wanted = full_len * -(-decode_rows_max(max_num_seqs, ladder[-1]) // full_len)
    tokens_max = min(max(wanted, full_len * max_num_seqs), given if isinstance(given, int) else _STEP_TOKENS)
    limits = GraphLimits(ladder, max_num_seqs, tokens_max)
    return plan_graphs(limits, GraphSupport.UNIFORM_BATCH, graph_budget(settings[GRAPHS]), GraphCost())


def graph_ladder(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the depths with graphs, ascending."""
    return tuple(settings["ladder"])


def graph_budget(settings: Mapping[str, Any]) -> GraphBudget:
    return GraphBudget(settings["s_max"], settings["gib_max"])


def names_sizes(engine: Mapping[str, Any]) -> bool:
    """Return whether a deployment file sets the sizes of vLLM's graphs."""
    compilation = engine.get(COMPILATION)
    of_compilation = compilation if isinstance(compilation, dict) else {}
    return any(place.get(name) is not None for place in (engine, of_compilation) for name in (SIZES, MAX_SIZE))


def why_not_full(engine: Mapping[str, Any]) -> str:
    """Return the engine argument that disables full graphs; empty if there is none."""
    compilation = engine.get(COMPILATION)
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, dict) else None
    if engine.get("enforce_eager"):
        return "engine.enforce_eager"
    is_without = isinstance(mode, str) and mode.upper() in _WITHOUT_FULL_GRAPHS
    return "engine.compilation_config.cudagraph_mode" if is_without else ""


def _has_rungs(deployment: Deployment) -> bool:
    # Other drafters run in vLLM's second model runner, which has its own graphs.
    drafter = deployment.drafter
    return (
        deployment.resources.accelerator == "gpu"
        and deployment.speculates
        and deployment.speculation.live_depth
        and drafter is not None
        and drafter.method == "p-eagle"
    )
