"""Checks of an engine on a GPU: each takes a running engine and raises if its property does not hold.

Plain functions, so that they run without pytest, too: a GPU machine may have no more than an engine. All in float32,
for the reason that tests/integration/engine/depth/test_live_depth.py gives.
"""

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peagle.config import Deployment
from support.engines.engine_runner import Runner, embedded, held_out, running

DEPTHS = (7, 5, 3, 2, 1, 0)
DEPTH_MAX = 7
TOKENS = 96
BATCH = 8
FULL_GRAPHS_MIN = 0.99
ENGINE = {
    "dtype": "float32",
    "max_num_seqs": 16,
    "block_size": 32,
    # KV cache for eight requests of `greedy`, but not for eight of `outgrowing`.
    "num_gpu_blocks_override": 100,
    # Beside other engines, what is free while it starts says nothing.
    "gpu_memory_utilization": 0.05,
    "kv_cache_memory_bytes": 256 << 20,
}
SCHEMA = {
    "type": "object",
    "properties": {"public": {"type": "boolean"}, "name": {"type": "string", "maxLength": 8}},
    "required": ["public", "name"],
    "additionalProperties": False,
}
SEEDED = {"temperature": 0.9, "seed": 7}
Texts = list[tuple[int, ...]]
Truth = Mapping[str, Any]


def why_no_gpu() -> str | None:
    """Return why no GPU check can run here; None with an NVIDIA GPU and an engine for it."""
    try:
        import torch
        from vllm.platforms import current_platform
    except ImportError as error:
        return f"{error.name} is not installed"
    if not torch.cuda.is_available():
        return "this machine shows no NVIDIA GPU"
    return None if current_platform.is_cuda() else "the installed vLLM is not built for CUDA"


def on_gpu(deployment: Deployment) -> Deployment:
    """Return the embedded deployment for a GPU."""
    resources = deployment.resources.model_copy(update={"accelerator": "gpu"})
    return deployment.model_copy(update={"resources": resources})


def adaptive_on_gpu(deployment: Deployment) -> Deployment:
    """Return the same with live depth: steps draft at most K tokens, and none at K = 0."""
    adaptive = deployment.speculation.model_copy(update={"adaptive": True})
    return on_gpu(deployment).model_copy(update={"speculation": adaptive})


def undrafted(deployment: Deployment) -> Deployment:
    return deployment.model_copy(update={"speculation": deployment.speculation.model_copy(update={"enabled": False})})


@contextmanager
def drafting(place: Callable[[Deployment], Deployment] = on_gpu) -> Iterator[tuple[Runner, Truth]]:
    """An engine with live depth, and the target's output without a drafter."""
    deployment = place(embedded(**ENGINE))
    with running(undrafted(deployment)) as runner:
        truth = {"greedy": greedy(runner), "structured": structured(runner), "outgrowing": outgrowing(runner)}
    with running(deployment) as runner:
        yield runner, truth


def greedy(runner: Runner, on_step: Callable[[list[str]], None] | None = None, **sampling: Any) -> Texts:
    outputs = runner.generate(held_out(24), BATCH, on_step, max_tokens=TOKENS, ignore_eos=True, **sampling)
    return [tuple(output.token_ids) if output is not None else () for output in outputs]


def structured(runner: Runner) -> list[str]:
    from vllm.sampling_params import StructuredOutputsParams

    wanted = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    outputs = runner.generate(held_out(BATCH), 4, max_tokens=160, structured_outputs=wanted)
    return [output.text for output in outputs]


def outgrowing(runner: Runner, on_step: Callable[[list[str]], None] | None = None) -> Texts:
    """Eight requests that outgrow the KV cache together."""
    prompts = [prompt * 2 for prompt in held_out(BATCH)]
    outputs = runner.generate(prompts, BATCH, on_step, max_tokens=320, ignore_eos=True)
    return [tuple(output.token_ids) for output in outputs]


def greedy_output_is_the_targets_own_at_every_depth(runner: Runner, truth: Truth) -> None:
    for depth in DEPTHS:
        runner.set_depths(depth)
        before = runner.stats()
        assert greedy(runner) == truth["greedy"], f"K = {depth}"
        cells = runner.stats().since(before).cells
        assert {cell.depth for cell in cells} == {depth}, f"K = {depth}"


def greedy_output_is_the_targets_own_while_depth_changes(runner: Runner, truth: Truth) -> None:
    """Without K = 0 at first, after which requests no longer draft."""
    drafting = [depth for depth in DEPTHS if depth]
    assert _depths_of_changing(runner, truth, drafting) == {*drafting}
    assert 0 in _depths_of_changing(runner, truth, DEPTHS)
    assert greedy(runner, runner.restless(seed=1)) == truth["greedy"]


def _depths_of_changing(runner: Runner, truth: Truth, depths: Sequence[int]) -> set[int]:
    """Return the K of decode steps while it changes every few steps."""
    steps = 0

    def change(_: list[str]) -> None:
        nonlocal steps
        steps += 1
        if steps % 4 == 0:
            runner.set_depths(depths[steps // 4 % len(depths)])

    runner.set_depths(depths[0])
    before = runner.stats()
    assert greedy(runner, change) == truth["greedy"]
    return {cell.depth for cell in runner.stats().since(before).cells}


def acceptance_at_a_position_does_not_depend_on_depth(runner: Runner, _: Truth) -> None:
    """K is drawn for each step: in runs of their own, deep drafts would start from other places."""
    rng, before = random.Random(0), runner.stats()
    runner.generate(
        held_out(96), BATCH, lambda _: runner.set_depths(rng.choice((3, DEPTH_MAX))), max_tokens=64, ignore_eos=True
    )
    cells = runner.stats().since(before).cells
    for position in range(3):
        right, of = (
            [sum(getattr(cell, field)[position] for cell in cells if cell.depth == depth) for depth in (3, DEPTH_MAX)]
            for field in ("accepted", "drafted")
        )
        assert min(of) > 300
        pooled = sum(right) / sum(of)
        error = math.sqrt(pooled * (1 - pooled) * sum(1 / each for each in of))
        assert right[0] > 0
        assert abs(right[0] / of[0] - right[1] / of[1]) < 4 * error, (position, right, of)


def a_seed_gives_one_text_at_every_depth(runner: Runner, _: Truth) -> None:
    texts = []
    for depth in (DEPTH_MAX, 3, 0):
        runner.set_depths(depth)
        texts.append(greedy(runner, **SEEDED))
    assert texts[0] == texts[1] == texts[2]
    assert greedy(runner, runner.restless(seed=2), **SEEDED) == texts[0]
    assert greedy(runner, **{**SEEDED, "seed": 8}) != texts[0]


def structured_output_follows_its_schema_at_every_depth(runner: Runner, truth: Truth) -> None:
    for depth in (DEPTH_MAX, 3, 0):
        runner.set_depths(depth)
        texts = structured(runner)
        assert texts == truth["structured"], f"K = {depth}"
        assert all({*json.loads(text)} == {"public", "name"} for text in texts)


def a_cancelled_request_leaves_the_others_as_they_were(runner: Runner, truth: Truth) -> None:
    rng = random.Random(5)

    def cancel(in_flight: list[str]) -> None:
        if in_flight and rng.random() < 0.05:
            runner.engine.abort_request([rng.choice(in_flight)])

    runner.set_depths(DEPTH_MAX)
    outputs = greedy(runner, cancel)
    whole = [index for index, tokens in enumerate(outputs) if len(tokens) == TOKENS]
    assert 0 < len(whole) < len(outputs)
    assert all(outputs[index] == truth["greedy"][index] for index in whole)


def preempted_requests_resume_where_they_were(runner: Runner, truth: Truth) -> None:
    before = runner.counters()["num_preemptions"]
    assert outgrowing(runner, runner.restless(seed=3)) == truth["outgrowing"]
    assert runner.counters()["num_preemptions"] > before


def decode_steps_run_in_full_graphs(runner: Runner, _: Truth) -> None:
    before = runner.stats().steps_by_graph
    for depth in DEPTHS:
        runner.set_depths(depth)
        greedy(runner)
    after = runner.stats().steps_by_graph
    added = {kind: count - before.get(kind, 0) for kind, count in after.items()}
    assert sum(added.values()) > 0
    assert added.get("full", 0) >= FULL_GRAPHS_MIN * sum(added.values()), added


CHECKS: tuple[Callable[[Runner, Truth], None], ...] = (
    greedy_output_is_the_targets_own_at_every_depth,
    greedy_output_is_the_targets_own_while_depth_changes,
    acceptance_at_a_position_does_not_depend_on_depth,
    a_seed_gives_one_text_at_every_depth,
    structured_output_follows_its_schema_at_every_depth,
    a_cancelled_request_leaves_the_others_as_they_were,
    preempted_requests_resume_where_they_were,
    decode_steps_run_in_full_graphs,
)


CACHE_VARIABLES = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Caches of compiled kernels. An engine with empty caches stores every compiled kernel there."""


def empty_caches(folder: Path) -> dict[str, str]:
    """Return the environment of an engine with empty kernel caches."""
    return {name: str(folder / name.lower()) for name in CACHE_VARIABLES}


def compiled_kernels() -> int:
    """How many kernels have been compiled so far into the caches that the environment names."""
    return sum(1 for name in CACHE_VARIABLES if name in os.environ for _ in Path(os.environ[name]).rglob("*.cubin"))
