"""What to measure: which engines a comparison needs, and which (engine, K) pairs it times. Pure."""

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
    """One engine to start. With `live` it takes any K of `depths` while it runs, else it has exactly one.

    With `acceptance`, the probabilities that the first, the first two, … drafts are right, they are accepted by these,
    whatever they are.
    """

    method: str
    deployment: Deployment
    depths: tuple[int, ...]
    live: bool
    acceptance: tuple[float, ...] | None = None

    @property
    def drafted(self) -> int:
        """Tokens that its drafter drafts."""
        return drafted_depth(self.deployment)

    @property
    def name(self) -> str:
        return self.method if self.method in (NONE, FIXED) or self.live else f"{self.method} K={self.depths[0]}"


@dataclass(frozen=True, slots=True)
class Variant:
    """One engine at one K: a row of the result. `engine` indexes the list of plans; K is 0 without speculation.

    An adaptive one has the K that the Router's rule chooses as it runs, `depth` at most. With a held one the rule runs
    too, and an operator's pin keeps it at `depth`: it shows what running the rule costs.
    """

    engine: int
    method: str
    depth: int
    adaptive: bool = False
    held: bool = False

    @property
    def ruled(self) -> bool:
        """Whether the Router's rule runs beside the engine."""
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
    """Engines for `methods`, or for all that the two files offer where `methods` is empty; `adaptive` as replicas are.

    With `fixed`, also one of `deployment` that drafts so many tokens and has no live depth.

    A P-EAGLE drafter drafts all positions in one pass, so one engine of the largest K serves every K by verifying
    less. An EAGLE-3 drafter takes one pass a position: cutting its drafts would charge it for passes that a real
    deployment of that K does not make, so it gets an engine for each K.

    Raises ConfigError for a method that no file offers, a K above the trained depth, or above depth_max where depth
    is adaptive, a fixed K above all others, files with different targets, or two files of one method.
    """
    offered = {file.drafter.method: file for file in (baseline, deployment) if file is not None and file.drafter}
    if baseline is not None and baseline.target != deployment.target:
        raise ConfigError(
            "--baseline", baseline.target.source, "its target is another", "Compare drafters of one target."
        )
    if baseline is not None and len(offered) < 2:
        raise ConfigError(
            "--baseline", next(iter(offered), None), "it brings no other method", "Name a file with another drafter."
        )
    wanted = list(methods) or [NONE, *sorted(offered)]
    plans = []
    for method in dict.fromkeys(wanted):
        if method == NONE:
            plans.append(EnginePlan(NONE, _derive(deployment, None, eager), (0,), live=False))
            continue
        if method not in offered:
            known = ", ".join([NONE, *sorted(offered)])
            raise ConfigError("--methods", method, f"no file offers it (there are {known})", "Add one with --baseline.")
        file = offered[method]
        if file.drafter and max(depths) > (trained := file.drafter.trained_depth):
            problem = f"the {method} head was trained to depth {trained}"
            raise ConfigError("--depths", max(depths), problem, f"Lower it to {trained}.")
        if method == PEAGLE and file.speculation.live_depth:
            # Adaptive depth is measured on the engine that is served, whichever K it is held against.
            deepest = file.speculation.depth_max if adaptive else max(depths)
            if max(depths) > deepest:
                problem = f"the engine that is served drafts {deepest} tokens at most"
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
    """Every engine at every K it can take, and each that may change it at the rule's K and with the rule held."""
    variants = []
    for index, plan in enumerate(plans):
        variants += [Variant(index, plan.method, depth) for depth in plan.depths]
        if adaptive and plan.live:
            variants.append(Variant(index, plan.method, plan.deployment.speculation.depth_max, adaptive=True))
        if held is not None and plan.live:
            variants.append(Variant(index, plan.method, held, held=True))
    return variants


def sharing_a_gpu(deployment: Deployment, engines: int) -> Deployment:
    """`deployment` with its part of the GPU's memory, of which vLLM otherwise gives nearly all to one engine."""
    if deployment.resources.accelerator == "cpu" or engines == 1:
        return deployment
    engine = {**deployment.engine, "gpu_memory_utilization": round(GPU_MEMORY_RATIO / engines, 3)}
    return deployment.model_copy(update={"engine": engine})


def _derive(
    deployment: Deployment, depth: int | None, eager: bool, adaptive: bool = False, live: bool = True
) -> Deployment:
    """`deployment` at a fixed K, or without speculation where K is None; in one compile mode for all.

    An adaptive one drafts up to K, and keeps what else the file says of it.
    """
    raw: dict[str, Any] = deployment.model_dump()
    raw["engine"] = {**raw["engine"], "enforce_eager": eager}
    if depth is None:
        # This argument is refused by an engine that does not speculate.
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
