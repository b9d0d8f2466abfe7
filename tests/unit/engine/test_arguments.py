import subprocess
import sys
from typing import Any

import pytest

from peagle.config import Deployment, parse_deployment
from peagle.engine.arguments import drafted_depth, engine_arguments


def deployment(**changes: Any) -> Deployment:
    raw = {
        "name": "tiny",
        "target": {"source": "org/target", "revision": "abc"},
        "drafter": {"source": "org/head", "revision": "def", "trained_depth": 8},
        "speculation": {"depth_max": 7, "depth_static": 5, "adaptive": False},
        "engine": {"dtype": "float32", "max_num_seqs": 8},
        "resources": {"accelerator": "gpu", "tensor_parallel_size": 2},
    }
    return parse_deployment({**raw, **changes}, origin="test")


def test_live_depth_drafts_the_deepest_and_starts_at_the_static_depth() -> None:
    arguments = engine_arguments(deployment())
    assert arguments["speculative_config"] == {
        "method": "eagle3",
        "model": "org/head",
        "revision": "def",
        "num_speculative_tokens": 7,
        "parallel_drafting": True,
    }
    assert arguments["scheduler_cls"] == "peagle.engine.plugin.scheduler"
    assert arguments["additional_config"]["peagle"]["live_depth"] == {
        "depth_static": 5,
        "skips_drafter": False,
        "drafts_to_depth": False,
    }


@pytest.mark.parametrize(
    ("accelerator", "adaptive", "skips", "to_depth"),
    [
        ("cpu", True, True, True),
        ("cpu", None, True, True),
        ("cpu", False, False, False),
        ("gpu", True, True, True),
        ("gpu", None, True, True),
        ("gpu", False, False, False),
    ],
)
def test_adaptive_depth_skips_the_drafter_and_drafts_no_deeper_than_it_verifies(
    accelerator: str, adaptive: bool | None, skips: bool, to_depth: bool
) -> None:
    adapting = deployment(resources={"accelerator": accelerator}, speculation={"depth_max": 7, "adaptive": adaptive})
    settings = engine_arguments(adapting)["additional_config"]["peagle"]["live_depth"]
    assert (settings["skips_drafter"], settings["drafts_to_depth"]) == (skips, to_depth)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"backend": "xgrammar"}),
        ({"disable_any_whitespace": True}, {"backend": "xgrammar", "disable_any_whitespace": True}),
        ({"backend": "guidance"}, {"backend": "guidance"}),
    ],
    ids=["nothing", "whitespace", "guidance"],
)
def test_no_request_chooses_the_backend_of_grammars(given: dict[str, Any], expected: dict[str, Any]) -> None:
    engine = {"structured_outputs_config": given} if given else {}
    assert engine_arguments(deployment(engine=engine))["structured_outputs_config"] == expected


def test_target_name_and_engine_settings_reach_vllm() -> None:
    arguments = engine_arguments(deployment())
    assert arguments["model"] == "org/target"
    assert arguments["revision"] == "abc"
    assert arguments["served_model_name"] == "tiny"
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["dtype"] == "float32"
    assert arguments["max_num_seqs"] == 8


def test_a_cpu_computes_in_what_it_is_fast_in_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.engine.arguments.cpu_dtype", lambda: "native")
    cpu = {"accelerator": "cpu"}
    assert engine_arguments(deployment(resources=cpu, engine={}))["dtype"] == "native"
    assert engine_arguments(deployment(resources=cpu, engine={"dtype": "auto"}))["dtype"] == "auto"
    assert "dtype" not in engine_arguments(deployment(engine={}))


def test_each_answer_reports_its_acceptance_by_default() -> None:
    assert engine_arguments(deployment())["per_request_spec_decode_metrics"] == "summary"
    silent = deployment(engine={"per_request_spec_decode_metrics": "none"})
    assert engine_arguments(silent)["per_request_spec_decode_metrics"] == "none"


def test_without_live_depth_the_static_depth_is_drafted_and_no_table_is_kept() -> None:
    arguments = engine_arguments(deployment(speculation={"live_depth": False, "depth_max": 7, "depth_static": 5}))
    assert arguments["speculative_config"]["num_speculative_tokens"] == 5
    assert "live_depth" not in arguments["additional_config"]["peagle"]


@pytest.mark.parametrize("speculation", [{"enabled": False}, {"live_depth": False, "depth_max": 7, "depth_static": 0}])
def test_an_engine_that_never_speculates_starts_without_a_drafter(speculation: dict[str, Any]) -> None:
    off = deployment(speculation=speculation)
    assert drafted_depth(off) == 0
    assert not {"speculative_config", "per_request_spec_decode_metrics"} & engine_arguments(off).keys()
    assert engine_arguments(off)["additional_config"]["peagle"].keys() == {"step_tokens_shared", "mask_s_max"}


def test_an_autoregressive_head_drafts_one_token_at_a_time() -> None:
    eagle = deployment(drafter={"source": "org/head", "method": "eagle3", "trained_depth": 7})
    assert engine_arguments(eagle)["speculative_config"]["parallel_drafting"] is False


def test_a_deployments_own_additional_config_is_kept() -> None:
    mine = deployment(engine={"additional_config": {"mine": 1}})
    assert engine_arguments(mine)["additional_config"] | {"peagle": None} == {"mine": 1, "peagle": None}
    assert mine.engine == {"additional_config": {"mine": 1}}
    assert engine_arguments(deployment(engine={"additional_config": None}))["additional_config"].keys() == {"peagle"}


@pytest.mark.parametrize(
    ("accelerator", "given", "tokens"), [("cpu", None, 96), ("gpu", None, 1024), ("cpu", 32, 32), ("gpu", 32, 32)]
)
def test_a_shared_step_computes_what_the_file_says_or_what_suits_the_machine(
    accelerator: str, given: int | None, tokens: int
) -> None:
    shared = deployment(resources={"accelerator": accelerator}, routing={"step_tokens_shared": given})
    assert engine_arguments(shared)["additional_config"]["peagle"]["step_tokens_shared"] == tokens


IN_PROCESS = "peagle.engine.executor.InProcessExecutor"


@pytest.mark.parametrize(
    ("resources", "engine", "executor"),
    [
        ({"accelerator": "cpu"}, {}, IN_PROCESS),
        ({"accelerator": "cpu"}, {"distributed_executor_backend": "mp"}, "mp"),
        ({"accelerator": "gpu"}, {}, None),
    ],
)
def test_one_cpu_worker_runs_in_the_engine_cores_process(
    resources: dict[str, Any], engine: dict[str, Any], executor: str | None
) -> None:
    chosen = engine_arguments(deployment(resources=resources, engine=engine))
    assert chosen.get("distributed_executor_backend") == executor


def test_arguments_and_plugin_import_no_engine() -> None:
    code = (
        "import peagle.engine.arguments, peagle.engine.plugin, peagle.engine.depth.live_depth, sys;"
        "sys.exit(bool({'vllm', 'torch', 'ray'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
