"""Shapes with random weights: bundled shapes are complete, and invalid ones are refused before a start."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from peagle.bench.engines.engine_plan import plan_engines
from peagle.bench.engines.made_up import (
    head_config,
    known_shapes,
    made_up,
    random_prompts,
    read_acceptance,
    read_shape,
    synthetic_acceptance,
)
from peagle.config import parse_deployment
from peagle.engine.checks.drafter_checks import examine_checkpoints
from peagle.engine.cost_prior import cost_prior
from peagle.errors import ConfigError

TINY = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "vocab_size": 512, "intermediate_size": 96}


def test_three_shapes_are_shipped_and_the_command_line_names_them() -> None:
    from peagle.bench import bench_cli

    assert known_shapes() == ("gpt-oss-20b", "llama-3.1-8b", "qwen3-30b-a3b")
    option = get_args(bench_cli.Shape)[1]
    assert all(shape in option.help for shape in known_shapes())


@pytest.mark.parametrize("shape", known_shapes())
def test_a_shipped_shape_makes_engines_of_both_methods(shape: str) -> None:
    with made_up(shape, None, "gpu") as files:
        assert set(files) == {"p-eagle", "eagle3"}
        for deployment in files.values():
            assert all(check.outcome in ("ok", "not checked") for check in examine_checkpoints(deployment))
            assert deployment.engine["load_format"] == "dummy"
            assert "target" not in cost_prior(deployment).stand_ins
        plans = plan_engines(files["p-eagle"], files["eagle3"], [], [3, 7], eager=False, acceptance=(0.8,) * 7)
        assert [plan.name for plan in plans] == ["none", "eagle3 K=3", "eagle3 K=7", "p-eagle"]
        assert [plan.acceptance is None for plan in plans] == [True, False, False, False]
        assert [plan.drafted for plan in plans] == [0, 3, 7, 7]
    assert not Path(files["p-eagle"].target.source).exists()


@pytest.mark.parametrize(("shape", "billions"), [("llama-3.1-8b", 8.0), ("qwen3-30b-a3b", 30.5), ("gpt-oss-20b", 20.9)])
def test_a_shipped_shape_is_of_the_size_that_its_name_says(shape: str, billions: float) -> None:
    config = read_shape(shape)
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    width, kv_heads = config["head_dim"], config["num_key_value_heads"]
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    feed = config.get("moe_intermediate_size") or config["intermediate_size"]
    attention = hidden * width * (2 * heads + 2 * kv_heads)
    parameters = layers * (attention + 3 * hidden * feed * experts) + 2 * config["vocab_size"] * hidden
    assert parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_an_engines_own_arguments_are_kept() -> None:
    raw: dict[str, Any] = {
        "name": "m",
        "target": {"source": "org/t"},
        "drafter": {"source": "org/h", "trained_depth": 5},
        "speculation": {"depth_max": 5, "depth_static": 3, "calibration_s": 4},
        "engine": {"max_num_seqs": 24},
        "resources": {"accelerator": "cpu"},
    }
    with made_up("llama-3.1-8b", parse_deployment(raw, origin="m"), "gpu") as files:
        speculation = files["p-eagle"].speculation
        assert (speculation.depth_max, speculation.depth_static, speculation.calibration_s) == (5, 3, 4)
        assert files["eagle3"].engine["max_num_seqs"] == 24
        assert files["eagle3"].resources.accelerator == "cpu"


@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_a_head_taps_three_different_layers(method: str) -> None:
    for layers in (3, 4, 16, 48):
        taps = head_config({**TINY, "num_hidden_layers": layers}, method)["eagle_aux_hidden_state_layer_ids"]
        assert len(set(taps)) == 3
        assert 0 <= min(taps) <= max(taps) < layers


def test_a_file_is_a_shape(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    assert read_shape(str(tmp_path / "tiny.json")) == TINY


@pytest.mark.parametrize(
    ("shape", "said"),
    [("lama-3.1-8b", "Did you mean llama-3.1-8b"), ("nothing", "Name a config.json"), ("", "there is no such shape")],
)
def test_a_shape_that_is_not_there_is_named(shape: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_shape(shape)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hidden_size": 64}', "no json"])
def test_a_file_without_a_shape_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match="it has no hidden_size"):
        read_shape(str(tmp_path / "config.json"))


def test_a_target_that_is_too_shallow_for_a_head_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flat.json").write_text(json.dumps({**TINY, "num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match="a head taps 3"):
        read_shape(str(tmp_path / "flat.json"))


def test_a_curve_is_cut_to_what_is_drafted() -> None:
    assert read_acceptance(".8,.6,.5", 2, "gpu") == (0.8, 0.6)
    assert read_acceptance(None, 7, "cpu") is None
    assert synthetic_acceptance((0.8, 0.6)) == {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.8, 0.6],
    }


def test_vllm_takes_a_curve_by_these_names() -> None:
    config = pytest.importorskip("vllm.config.speculative").SpeculativeConfig
    assert set(synthetic_acceptance((0.8,))) <= set(config.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "accelerator", "said"),
    [
        (".8,.9", "gpu", "not a decreasing list"),
        ("1.2,.9", "gpu", "not a decreasing list"),
        ("nan,nan", "gpu", "not a decreasing list"),
        ("a,b", "gpu", "not a decreasing list"),
        (".8", "gpu", "it has 1 positions, but 2 are drafted"),
        (".8,.6", "cpu", "only on a GPU"),
    ],
)
def test_a_curve_that_cannot_be_played_is_named(text: str, accelerator: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_acceptance(text, 2, accelerator)


def test_prompts_are_the_same_every_time() -> None:
    prompts = random_prompts(512, 3)
    assert prompts == random_prompts(512, 3)
    assert [len(prompt) for prompt in prompts] == [128] * 3
    assert len({tuple(prompt) for prompt in prompts}) == 3
    assert all(0 <= token < 512 for prompt in prompts for token in prompt)
