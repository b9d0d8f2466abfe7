"""Steps by kind of graph, counted by the real scheduler; and steps padded where only uniform batches replay."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.engines.scheduler_core import DEPTH_MAX, Core, add, continuation, scheduler_of, stats_of

EACH_SCHEDULER = pytest.mark.parametrize("overlapped", [False, True], ids=["plain", "overlapped"])


def ran_as(kind: str, is_decode: bool = True, takes_uniform_only: bool = False) -> Any:
    pytest.importorskip("vllm")
    from peagle.engine.patches.rung_graphs import StepGraph
    from peagle.router.graphs import GraphKind

    return StepGraph(8, 8, 0, kind, GraphKind(kind), is_decode, takes_uniform_only)


def core_of(folder: Path, overlapped: bool, **settings: Any) -> Core:
    return Core(scheduler_of(folder, overlapped, blocks=200, **settings), overlapped, random.Random(1))


@EACH_SCHEDULER
def test_decode_steps_are_counted_by_what_they_ran_as(folder: Path, overlapped: bool) -> None:
    core = core_of(folder, overlapped)
    add(core, "r", [1, 2, 3], 60, [])
    told = [ran_as("none", is_decode=False), *[ran_as("full")] * 3, *[ran_as("piecewise")] * 2, ran_as("none")]
    for each in told:
        core.worker.ran_as = each
        core.step()
    while core.queue:
        core.worker.ran_as = ran_as("none", is_decode=False)
        core.step()
    before = stats_of(core)
    assert before.steps_by_graph == {"full": 3, "piecewise": 2, "none": 1}
    core.worker.ran_as = ran_as("full")
    add(core, "s", [1, 2, 3], 60, [])
    core.step()
    core.step()
    added = stats_of(core).since(before)
    assert added.steps_by_graph["full"] in (1, 2)
    assert added.steps_by_graph["piecewise"] == 0


@EACH_SCHEDULER
def test_where_there_are_no_graphs_nothing_is_counted(folder: Path, overlapped: bool) -> None:
    core = core_of(folder, overlapped)
    add(core, "r", [1, 2, 3], 10, [])
    while core.busy():
        core.step()
    assert stats_of(core).steps_by_graph == {}


def test_vllm_s_own_statement_goes_on_only_where_it_is_asked_for(folder: Path) -> None:
    from vllm.compilation.cuda_graph import CUDAGraphStat

    for asked in (False, True):
        core = core_of(folder, overlapped=False)
        core.scheduler.vllm_config.observability_config.cudagraph_metrics = asked
        core.worker.ran_as = ran_as("full")
        add(core, "r", [1, 2, 3], 10, [])
        output = core.scheduler.schedule()
        result, _ = core.worker.run(output)
        told = core.scheduler.update_from_output(output, result)[0].scheduler_stats.cudagraph_stats
        assert told == (CUDAGraphStat(8, 8, 0, "full") if asked else None)


def batches_of_both(core: Core) -> list[set[int]]:
    """Let one request rest and another join it; return the token counts of the requests in each common step."""
    add(core, "old", [1, 2, 3], 120, [])
    for _ in range(6):
        core.step()
    assert core.worker.gapped == {"old"}
    core.scheduler.set_depths(1, [3])
    for _ in range(6):
        core.step()
    add(core, "new", [4, 5, 6], 40, [])
    seen = []
    while core.busy():
        core.step()
        if core.worker.last_step.keys() == {"old", "new"}:
            seen.append(set(core.worker.last_step.values()))
    assert core.emitted == {"old": continuation([1, 2, 3], 120), "new": continuation([4, 5, 6], 40)}
    return seen


def test_a_request_that_rests_makes_no_step_uneven_where_only_uniform_batches_replay(folder: Path) -> None:
    core = core_of(folder, overlapped=True, depth_static=0, skips_drafter=True)
    core.worker.ran_as = ran_as("full", takes_uniform_only=True)
    steps = batches_of_both(core)
    assert {4} in steps
    # The step in which "new" joins with its prompt, and the one in which a request ends.
    assert sum(each != {4} for each in steps) <= 3
    stats = stats_of(core)
    both = [cell for cell in stats.cells if cell.batch_size == 2 and cell.depth]
    # Drafts over the gap do not count for acceptance.
    assert all(cell.drafts <= cell.steps and cell.rested == cell.steps for cell in both)


@pytest.mark.parametrize(
    ("overlapped", "uniform_only"), [(True, False), (False, True)], ids=["any mix replays", "drafts are called for"]
)
def test_elsewhere_it_verifies_nothing(folder: Path, overlapped: bool, uniform_only: bool) -> None:
    core = core_of(folder, overlapped, depth_static=0, skips_drafter=True)
    core.worker.ran_as = replace(ran_as("full"), takes_uniform_only=uniform_only)
    steps = batches_of_both(core)
    assert {1, 4} in steps
    assert {4} not in steps


def test_a_bound_of_its_own_is_kept_to(folder: Path) -> None:
    core = core_of(folder, overlapped=True)
    core.worker.ran_as = ran_as("full", takes_uniform_only=True)
    add(core, "free", [1, 2, 3], 60, [])
    add(core, "bound", [4, 5, 6], 60, [], depth_max=0)
    seen = []
    while core.busy():
        core.step()
        seen.append(core.worker.last_step.get("bound"))
    assert set(seen[1:]) <= {1, None}
    assert DEPTH_MAX + 1 not in seen
    assert core.emitted["bound"] == continuation([4, 5, 6], 60)
