"""The depth rule's settings from a deployment file."""

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.config import Deployment, load_deployment, parse_deployment
from peagle.engine.arguments import MAX_NUM_SEQS, engine_arguments
from peagle.errors import ConfigError
from peagle.router.depth import DEVICES, EMBEDDED_CPU, TARGETS, roofline_prior
from peagle.serve.depth_settings import depth_settings
from support.paths import DEPLOYMENTS


def deployment(speculation: dict[str, object], **more: object) -> Deployment:
    raw = {
        "name": "m",
        "target": {"source": "openai/gpt-oss-120b"},
        "drafter": {"source": "amazon/gpt-oss-120b-p-eagle", "method": "p-eagle", "trained_depth": 8},
        "speculation": speculation,
        **more,
    }
    return parse_deployment(raw, origin="m.yaml", base=Path.cwd())


def test_bounds_are_the_files() -> None:
    settings = depth_settings(load_deployment(DEPLOYMENTS / "embedded.yaml"))
    assert (settings.depth_max, settings.depth_static, settings.batch_max) == (7, 7, 32)
    assert settings.cost == EMBEDDED_CPU
    assert settings.drafter_skipped_at_zero


def test_a_gpu_model_begins_from_its_size() -> None:
    model = deployment({"depth_max": 7, "depth_static": 3, "adaptive": True})
    settings = depth_settings(model)
    assert settings.batch_max == MAX_NUM_SEQS == engine_arguments(model)["max_num_seqs"]
    assert settings.cost.experts == TARGETS["gpt-oss-120b"].experts


def test_gpus_that_share_a_models_layers_share_its_work() -> None:
    one, four = (
        depth_settings(
            deployment(
                {"depth_max": 7, "adaptive": True}, resources={"accelerator": "gpu", "tensor_parallel_size": size}
            )
        ).cost
        for size in (1, 4)
    )
    shared = ("weights_s", "experts_s", "token_s")
    assert [getattr(four, name) for name in shared] == pytest.approx([getattr(one, name) / 4 for name in shared])
    assert (four.step_s, four.draft_s, four.sequence_s) == (one.step_s, one.draft_s, one.sequence_s)


@pytest.mark.parametrize(
    ("speculation", "expected"),
    [
        ({}, True),
        ({"adaptive": None}, True),
        ({"adaptive": False}, False),
        ({"live_depth": False}, False),
        ({"enabled": False}, False),
        ({"adaptive": True, "enabled": False}, False),
    ],
)
def test_a_p_eagle_drafter_with_live_depth_adapts_unless_its_file_says_no(
    speculation: dict[str, object], expected: bool
) -> None:
    assert deployment(speculation).adapts is expected


@pytest.mark.parametrize(("adaptive", "expected"), [(None, False), (True, True), (False, False)])
def test_another_drafter_adapts_where_its_file_says_so(adaptive: bool | None, expected: bool) -> None:
    eagle3 = {"source": "org/head", "method": "eagle3", "trained_depth": 7}
    assert deployment({"adaptive": adaptive}, drafter=eagle3).adapts is expected


def test_an_inter_token_target_reaches_the_rule_and_needs_something_that_adapts() -> None:
    assert depth_settings(deployment({"inter_token_s_max": 0.02})).inter_token_s_max == 0.02
    with pytest.raises(ConfigError, match=r"speculation\.inter_token_s_max.*adaptive: true"):
        deployment({"inter_token_s_max": 0.02, "adaptive": False})
    with pytest.raises(ConfigError, match=r"speculation\.inter_token_s_max.*live_depth: true"):
        deployment({"inter_token_s_max": 0.02, "live_depth": False})


def test_adaptive_without_live_depth_is_refused_where_the_file_says_so() -> None:
    with pytest.raises(ConfigError, match=r"speculation\.adaptive.*live_depth"):
        deployment({"adaptive": True, "live_depth": False})


def test_a_target_and_a_gpu_that_are_named_are_taken() -> None:
    model = deployment({"adaptive": True}, resources={"accelerator_type": "H200"})
    assert depth_settings(model).cost == roofline_prior(TARGETS["gpt-oss-120b"], DEVICES["H200"])


def test_an_unknown_target_changes_nothing_but_the_prior() -> None:
    speculation = {"adaptive": True, "depth_max": 5, "depth_static": 3}
    known = depth_settings(deployment(speculation))
    assert depth_settings(deployment(speculation, target={"source": "org/unheard-of"})) == replace(
        known, cost=roofline_prior(TARGETS["gpt-oss-20b"], DEVICES["B200"])
    )
