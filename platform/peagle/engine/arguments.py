"""Converts a deployment to vLLM's arguments. Imports no vllm, so that validation works without it."""

from dataclasses import fields
from typing import Any

from peagle.api.api_settings import GrammarSettings
from peagle.config import Deployment
from peagle.config.deployment import GRAMMAR_BACKENDS, STRUCTURED_OUTPUTS
from peagle.engine.cpu_dtype import cpu_dtype
from peagle.engine.graphs.graph_arguments import capture_sizes, graph_settings
from peagle.import_paths import EXECUTOR, SCHEDULER, WORKER_EXTENSION

# Default of an engine with adaptive depth.
MAX_NUM_SEQS = 256
# The key under vLLM's `additional_config` that carries settings to the scheduler in the engine core process.
SETTINGS_KEY = "peagle"
LIVE_DEPTH = "live_depth"
STEP_TOKENS = "step_tokens_shared"
MASK_S_MAX = "mask_s_max"
_MASK_S_MAX = GrammarSettings().max_mask_s
# Tokens of a step above which larger steps gain little throughput. The value for GPUs is not measured.
_STEP_TOKENS = {"cpu": 96, "gpu": 1024}


def engine_arguments(deployment: Deployment, mask_s_max: float = _MASK_S_MAX) -> dict[str, Any]:
    """Return keyword arguments for vLLM's `AsyncEngineArgs` (and `LLM`).

    With live depth the drafter can draft `depth_max`, and the scheduler decides how much of it is verified, starting
    from `depth_static`. Without it the drafter always drafts `depth_static`; at 0 there is no drafter at all.

    A request ends if its grammar takes longer than `mask_s_max` for a token.
    """
    arguments: dict[str, Any] = {
        **deployment.engine,
        "model": deployment.target.source,
        "revision": deployment.target.revision,
        "served_model_name": deployment.name,
        "tensor_parallel_size": deployment.resources.tensor_parallel_size,
        "disable_log_stats": False,
        # With and without a drafter, so that a seed always gives the same text.
        "worker_extension_cls": WORKER_EXTENSION,
        "scheduler_cls": SCHEDULER,
        "structured_outputs_config": _structured_outputs(deployment),
    }
    settings: dict[str, Any] = {
        STEP_TOKENS: deployment.routing.step_tokens_shared or _STEP_TOKENS[deployment.resources.accelerator],
        MASK_S_MAX: mask_s_max,
    }
    arguments["additional_config"] = {**(arguments.get("additional_config") or {}), SETTINGS_KEY: settings}
    if deployment.resources.accelerator == "cpu":
        # One worker: a CPU engine has neither tensor nor pipeline parallelism.
        arguments.setdefault("distributed_executor_backend", EXECUTOR)
        if arguments.get("dtype") is None:
            # Decided here, once, so that all replicas compute in the same dtype.
            arguments["dtype"] = cpu_dtype()
    depth = drafted_depth(deployment)
    if depth == 0:
        return arguments
    # Each answer reports its acceptance.
    arguments.setdefault("per_request_spec_decode_metrics", "summary")
    drafter = deployment.drafter
    assert drafter is not None, "a deployment that speculates has a drafter"
    arguments["speculative_config"] = {
        "method": "eagle3",
        "model": drafter.source,
        "revision": drafter.revision,
        "num_speculative_tokens": depth,
        "parallel_drafting": drafter.method == "p-eagle",
    }
    if deployment.speculation.live_depth:
        speculation = deployment.speculation
        if deployment.adapts and arguments.get("max_num_seqs") is None:
            # vLLM's default differs by device, and the depth rule has to know the largest batch size.
            arguments["max_num_seqs"] = MAX_NUM_SEQS
        settings[LIVE_DEPTH] = {
            "depth_static": speculation.depth_static,
            "skips_drafter": _skips_drafter(deployment),
            "drafts_to_depth": drafts_to_depth(deployment),
        }
        settings.update(graph_settings(deployment))
        arguments.update(capture_sizes(deployment, arguments.get("max_num_seqs") or MAX_NUM_SEQS))
    return arguments


def without_server(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an engine without those of vLLM's OpenAI server."""
    # Imported here: only callers that build an engine without a server have vLLM already.
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    of_server = {each.name for each in fields(FrontendArgs)}
    return {name: value for name, value in arguments.items() if name not in of_server}


def settings_of(vllm_config: Any) -> dict[str, Any]:
    """Return the settings that `engine_arguments` put into an engine's configuration."""
    settings: dict[str, Any] = vllm_config.additional_config[SETTINGS_KEY]
    return settings


def _structured_outputs(deployment: Deployment) -> dict[str, Any]:
    # An engine core has one backend for all requests. By default the first request chooses it.
    chosen = deployment.engine.get(STRUCTURED_OUTPUTS)
    return {"backend": GRAMMAR_BACKENDS[0], **(chosen if isinstance(chosen, dict) else {})}


def _skips_drafter(deployment: Deployment) -> bool:
    # A static K may be changed by hand at any step; adaptive depth gains more by not drafting at all at K = 0. On a GPU
    # vLLM runs other drafters in its second model runner, which drafts whether asked to or not.
    drafter = deployment.drafter
    return deployment.adapts and drafter is not None and drafter.method == "p-eagle"


def drafts_to_depth(deployment: Deployment) -> bool:
    """Return whether a step drafts only what the next one will verify, except for one in a few steps."""
    # On a CPU each drafter row costs the same; with many requests a GPU drafter's time grows with its rows.
    return _skips_drafter(deployment)


def drafted_depth(deployment: Deployment) -> int:
    """Return how many tokens the drafter drafts each step; 0 if the engine runs without a drafter."""
    speculation = deployment.speculation
    if not deployment.speculates:
        return 0
    return speculation.depth_max if speculation.live_depth else speculation.depth_static
