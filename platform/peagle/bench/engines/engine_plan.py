"""Plan of a comparison: its engines, and the (engine, K) pairs to time. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.bench.core.records import FIXED, NONE, PEAGLE
from peagle.config import Deployment, Speculation, parse_deployment
from peagle.engine.arguments import drafted_depth
from peagle.errors import ConfigError

GPU_MEMORY_RATIO = 0.9


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine to start. With `live` it can switch to any K of `depths` while it runs, else it has exactly one.

    With `acceptance`, the probabilities that the first, the first two, … drafts are accepted, drafts are accepted with
    these probabilities, whatever their tokens.
    """

    method: str
    deployment: Deployment
    depths: tuple[int, ...]
    live: bool
    acceptance: tuple[float, ...] | None = None

    @property
    def drafted(self) -> int:
        """Number of tokens that its drafter drafts."""
        return drafted_depth(self.deployment)

    @property
    def name(self) -> str:
        return self.method if self.method in (NONE, FIXED) or self.live else f"{self.method} K={self.depths[0]}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One engine at one K: a row of the result. `engine` indexes the list of plans; K is 0 without speculation.

    An adaptive variant uses the K that the Router's rule chooses, at most `depth`. In a held variant the rule runs too,
    but a pin keeps K at `depth`: it shows the cost of running the rule.
    """

    engine: int
    method: str
    depth: int
    adaptive: bool = False
    held: bool = False

    @property
    def ruled(self) -> bool:
        """Whether the Router's rule runs with the engine."""
        return self.adaptive or self.held

    @property
    def depth_name(self) -> str:
        if self.held:
            return f"{self.depth} held"
        return "adaptive" if self.adaptive else str(self.depth)

    @property
    def name(self) -> str:
        return self.method if self.method == NONE else f"{self.method} K={self.depth_name}"


def plan_engines(
    deployment: Deployment,
    baseline: Deployment | None,
    methods: Sequence[str],
    depths: Sequence[int],
    *,
    eager: bool,
    adaptive: bool = False,
    fixed: int | None = None,
    acceptance: tuple[float, ...] | None = None,
) -> list[EnginePlan]:
    """Return engines for `methods`, or for all methods of the two files if empty; `adaptive` engines run like replicas.

    With `fixed`, there is also an engine of `deployment` that drafts this many tokens without live depth.

    A P-EAGLE drafter drafts all positions in one pass, so one engine of the largest K measures every K by verifying
    fewer tokens. An EAGLE-3 drafter needs one pass per position: truncating its drafts would charge it for passes that
    a real deployment of that K does not make, so it gets an engine per K.

    Raises ConfigError for a method that no file has, a K above the trained depth, or above depth_max with adaptive
    depth, a fixed K above all others, files with different targets, or two files of one method.
    """
    offered = {file.drafter.method: file for file in (baseline, deployment) if file is not None and file.drafter}
    if baseline is not None and baseline.target != deployment.target:
        raise ConfigError(
            "--baseline", baseline.target.source, "it has a different target", "Compare drafters of the same target."
        )
    if baseline is not None and len(offered) < 2:
        raise ConfigError(
            "--baseline", next(iter(offered), None), "it has the same method", "Name a file with another drafter."
        )
    wanted = list(methods) or [NONE, *sorted(offered)]
    plans = []
    for method in dict.fromkeys(wanted):
        if method == NONE:
            plans.append(EnginePlan(NONE, _derive(deployment, None, eager), (0,), live=False))
            continue
        if method not in offered:
            known = ", ".join([NONE, *sorted(offered)])
            raise ConfigError("--methods", method, f"no file has it (available: {known})", "Add one with --baseline.")
        file = offered[method]
        if file.drafter and max(depths) > (trained := file.drafter.trained_depth):
            problem = f"the {method} head was trained to depth {trained}"
            raise ConfigError("--depths", max(depths), problem, f"Lower it to {trained}.")
        if method == PEAGLE and file.speculation.live_depth:
            # Adaptive depth is measured on the served engine, whichever K it is compared with.
            deepest = file.speculation.depth_max if adaptive else max(depths)
            if max(depths) > deepest:
                problem = f"the served engine drafts at most {deepest} tokens"
                raise ConfigError("--depths", max(depths), problem, "Lower it, or raise speculation.depth_max.")
            derived = _derive(file, deepest, eager, adaptive)
            plans.append(EnginePlan(method, derived, tuple(depths), live=True))
        else:
            plans.extend(EnginePlan(method, _derive(file, depth, eager), (depth,), live=False) for depth in depths)
    if fixed is not None:
        if fixed > max(depths):
            raise ConfigError("--fixed", fixed, f"--depths ends at {max(depths)}", "Add it there or lower it.")
        plans.append(EnginePlan(FIXED, _derive(deployment, fixed, eager, live=False), (fixed,), live=False))
    return [
        replace(
            plan,
            deployment=sharing_a_gpu(plan.deployment, len(plans)),
            acceptance=acceptance if plan.drafted else None,
        )
        for plan in plans
    ]


def variants_of(plans: Sequence[EnginePlan], *, adaptive: bool = False, held: int | None = None) -> list[Variant]:
    """Return every engine at each of its K, and live engines also with the rule and with the rule held."""
    variants = []
    for index, plan in enumerate(plans):
        variants += [Variant(index, plan.method, depth) for depth in plan.depths]
        if adaptive and plan.live:
            variants.append(Variant(index, plan.method, plan.deployment.speculation.depth_max, adaptive=True))
        if held is not None and plan.live:
            variants.append(Variant(index, plan.method, held, held=True))
    return variants


def sharing_a_gpu(deployment: Deployment, engines: int) -> Deployment:
    """Return `deployment` with its share of the GPU's memory, because vLLM would give nearly all to one engine."""
    if deployment.resources.accelerator == "cpu" or engines == 1:
        return deployment
    engine = {**deployment.engine, "gpu_memory_utilization": round(GPU_MEMORY_RATIO / engines, 3)}
    return deployment.model_copy(update={"engine": engine})


def _derive(
    deployment: Deployment, depth: int | None, eager: bool, adaptive: bool = False, live: bool = True
) -> Deployment:
    """Return `deployment` at a fixed K, or without speculation if K is None, in the common compile mode.

    An adaptive deployment drafts up to K, and keeps the file's other settings.
    """
    raw: dict[str, Any] = deployment.model_dump()
    raw["engine"] = {**raw["engine"], "enforce_eager": eager}
    if depth is None:
        # An engine without speculation refuses this argument.
        raw["engine"].pop("per_request_spec_decode_metrics", None)
        raw |= {"drafter": None, "speculation": {"enabled": False}}
    else:
        live = live and raw["speculation"]["live_depth"] and raw["drafter"]["method"] == PEAGLE
        ruled = deployment.speculation if adaptive else Speculation(depth_max=depth, depth_static=depth)
        raw["speculation"] = {
            "live_depth": live,
            "adaptive": adaptive,
            "by_request": ruled.by_request if adaptive else None,
            "depth_max": depth,
            "depth_static": min(ruled.depth_static, depth),
            "inter_token_s_max": ruled.inter_token_s_max,
            "calibration_s": ruled.calibration_s,
        }
    return parse_deployment(raw, origin=deployment.name)
