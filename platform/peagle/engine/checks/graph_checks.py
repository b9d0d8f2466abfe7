"""Reports the CUDA graphs that an engine is expected to capture, and the steps without one."""

from peagle.config import Deployment
from peagle.engine.arguments import MAX_NUM_SEQS
from peagle.engine.checks.check import Check
from peagle.engine.graphs.graph_arguments import names_sizes, planned, why_not_full

_NAME = "CUDA graphs"


def examine_graphs(deployment: Deployment) -> tuple[Check, ...]:
    """Report the graphs for decode steps and the batches without; empty unless depth is live on a GPU."""
    if not _has_live_depth_on_gpu(deployment):
        return ()
    if argument := why_not_full(deployment.engine):
        return (Check("engine", _NAME, "caution", f"{argument} leaves every step without a full graph"),)
    given = deployment.engine.get("max_num_seqs")
    plan = planned(deployment, given if isinstance(given, int) else MAX_NUM_SEQS)
    if plan is None:
        return (Check("engine", _NAME, "ok", "vLLM's own: its second model runner captures them for this drafter"),)
    if not plan.graphs:
        detail = "only vLLM's own, for full drafts: speculation.graph_s_max and graph_gib_max allow no others"
        return (Check("engine", _NAME, "caution", detail),)
    if names_sizes(deployment.engine):
        detail = f"{plan}; limited by the sizes in the engine section, which may leave out more"
        return (Check("engine", _NAME, "not checked", detail),)
    return (Check("engine", _NAME, "caution" if plan.left_out else "ok", str(plan)),)


def _has_live_depth_on_gpu(deployment: Deployment) -> bool:
    return deployment.resources.accelerator == "gpu" and deployment.speculates and deployment.speculation.live_depth
