"""A deployment's CUDA graph settings, converted for vLLM and its workers."""

from typing import Any

import pytest

from peagle.config import Deployment, parse_deployment
from peagle.engine.arguments import engine_arguments
from peagle.engine.graphs.graph_arguments import GRAPHS, capture_sizes, graph_settings, planned
from peagle.router.depth.drafter_rows import decode_rows_max


def deployment(**changes: Any) -> Deployment:
    raw: dict[str, Any] = {
        "name": "tiny",
        "target": {"source": "org/target"},
        "drafter": {"source": "org/head", "trained_depth": 8},
        "speculation": {"depth_max": 7, "depth_static": 5},
        "engine": {"max_num_seqs": 128},
        "resources": {"accelerator": "gpu"},
    }
    return parse_deployment({**raw, **changes}, origin="test")


def settings_of(arguments: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = arguments["additional_config"]["peagle"]
    return settings


def test_on_a_gpu_every_k_of_the_ladder_up_to_all_requests_has_graphs() -> None:
    arguments = engine_arguments(deployment())
    assert settings_of(arguments)[GRAPHS] == {"ladder": [0, 1, 2, 3, 5, 7], "s_max": 30.0, "gib_max": 6.0}
    sizes = arguments["cudagraph_capture_sizes"]
    assert sizes == sorted(sizes)
    assert sizes[-1] == decode_rows_max(128, 7) == 1792, "vLLM's own default ends at 512"
    assert all(size % 8 == 0 for size in sizes), "vLLM would round them"


@pytest.mark.parametrize("depth_max", range(1, 11))
def test_what_the_drafter_passes_over_has_graphs_whatever_the_deepest_k(depth_max: int) -> None:
    drafter = {"source": "org/head", "trained_depth": 10, "method": "p-eagle"}
    speculation = {"depth_max": depth_max, "depth_static": depth_max}
    arguments = engine_arguments(deployment(speculation=speculation, drafter=drafter))
    assert arguments["cudagraph_capture_sizes"][-1] >= decode_rows_max(128, depth_max)


def test_a_static_k_between_rungs_is_one() -> None:
    speculation = {"depth_max": 7, "depth_static": 4}
    assert graph_settings(deployment(speculation=speculation))[GRAPHS]["ladder"] == [0, 1, 2, 3, 4, 5, 7]


def test_a_replica_that_does_not_say_how_many_it_serves_has_graphs_for_those_that_adapt() -> None:
    assert max(engine_arguments(deployment(engine={}))["cudagraph_capture_sizes"]) == decode_rows_max(256, 7)


@pytest.mark.parametrize(
    "changes",
    [
        {"resources": {"accelerator": "cpu"}},
        {"drafter": {"source": "org/head", "trained_depth": 8, "method": "eagle3"}},
        {"speculation": {"live_depth": False}},
        {"speculation": {"enabled": False}},
        {"engine": {"enforce_eager": True}},
        {"engine": {"compilation_config": {"cudagraph_mode": "PIECEWISE"}}},
        {"engine": {"compilation_config": {"cudagraph_mode": "none"}}},
    ],
    ids=str,
)
def test_other_configurations_use_vllms_own_graphs(changes: dict[str, Any]) -> None:
    arguments = engine_arguments(deployment(**changes))
    assert GRAPHS not in settings_of(arguments)
    assert "cudagraph_capture_sizes" not in arguments
    assert planned(deployment(**changes), 8) is None


@pytest.mark.parametrize(
    "engine",
    [
        {"max_cudagraph_capture_size": 64},
        {"cudagraph_capture_sizes": [8, 64]},
        {"compilation_config": {"max_cudagraph_capture_size": 64}},
        {"compilation_config": {"cudagraph_capture_sizes": [8, 64]}},
    ],
    ids=str,
)
def test_sizes_of_the_file_s_own_stay_and_the_rungs_go_by_them(engine: dict[str, Any]) -> None:
    arguments = engine_arguments(deployment(engine=engine))
    assert {name: arguments[name] for name in engine} == engine
    assert capture_sizes(deployment(engine=engine), 128) == {}
    assert GRAPHS in settings_of(arguments)


def test_a_mode_that_has_full_graphs_changes_nothing() -> None:
    engine = {"compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"}, "max_num_seqs": 128}
    assert engine_arguments(deployment(engine=engine))["cudagraph_capture_sizes"][-1] == 1792


def test_no_size_has_more_tokens_than_a_step() -> None:
    engine = {"max_num_seqs": 128, "max_num_batched_tokens": 512}
    assert engine_arguments(deployment(engine=engine))["cudagraph_capture_sizes"][-1] == 512


def test_the_file_bounds_what_graphs_take() -> None:
    small = {"depth_max": 7, "graph_s_max": 15.0, "graph_gib_max": 1.9}
    plan, whole = planned(deployment(speculation=small), 128), planned(deployment(), 128)
    assert plan is not None
    assert whole is not None
    assert (plan.seconds, plan.gib) <= (15.0, 1.9)
    assert len(plan.graphs) < len(whole.graphs)
    nothing = deployment(speculation={"depth_max": 7, "graph_s_max": 0.0})
    assert "cudagraph_capture_sizes" not in engine_arguments(nothing)
