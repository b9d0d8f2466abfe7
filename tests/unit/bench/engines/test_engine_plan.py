"""Which engines a comparison starts."""

from typing import Any

import pytest

from peagle.bench.engines.engine_plan import Variant, plan_engines, variants_of
from peagle.config import Deployment, parse_deployment
from peagle.errors import ConfigError


def deployment(method: str = "p-eagle", target: str = "org/target", **changes: Any) -> Deployment:
    raw: dict[str, Any] = {
        "name": "model",
        "target": {"source": target},
        "drafter": {"source": "org/head", "method": method, "trained_depth": 8},
        "engine": {"max_num_seqs": 32, "per_request_spec_decode_metrics": "summary"},
    }
    return parse_deployment(raw | changes, origin="model.yaml")


def test_p_eagle_takes_every_depth_in_one_engine_and_eagle3_an_engine_for_each() -> None:
    plans = plan_engines(deployment(), deployment("eagle3"), [], [3, 7], eager=False)
    assert [(plan.name, plan.depths, plan.live) for plan in plans] == [
        ("none", (0,), False),
        ("eagle3 K=3", (3,), False),
        ("eagle3 K=7", (7,), False),
        ("p-eagle", (3, 7), True),
    ]
    assert [plan.deployment.speculation.depth_max for plan in plans[1:]] == [3, 7, 7]
    assert [plan.deployment.speculation.live_depth for plan in plans[1:]] == [False, False, True]
    assert not plans[3].deployment.speculation.adaptive
    as_served = plan_engines(deployment(), None, ["p-eagle"], [7], eager=False, adaptive=True)
    assert as_served[0].deployment.speculation.adaptive
    assert variants_of(plans)[-1] == Variant(engine=3, method="p-eagle", depth=7)
    adaptive = set(variants_of(plans, adaptive=True)) - set(variants_of(plans))
    assert adaptive == {Variant(engine=3, method="p-eagle", depth=7, adaptive=True)}


def test_an_adaptive_engine_keeps_what_else_the_served_rule_is_given() -> None:
    served = {"adaptive": True, "depth_max": 7, "depth_static": 5, "inter_token_s_max": 0.02}
    file = deployment(speculation=served)
    for depths in ([0, 7], [0, 3]):
        plans = plan_engines(file, None, ["p-eagle"], depths, eager=False, adaptive=True)
        ruled = plans[0].deployment.speculation
        assert (ruled.depth_max, ruled.depth_static, ruled.inter_token_s_max) == (7, 5, 0.02)
        assert variants_of(plans, adaptive=True)[-1] == Variant(0, "p-eagle", 7, adaptive=True)
    with pytest.raises(ConfigError, match=r"--depths = 8: the served engine drafts at most 7"):
        plan_engines(file, None, ["p-eagle"], [0, 8], eager=False, adaptive=True)
    swept = plan_engines(file, None, ["p-eagle"], [0, 7], eager=False)[0].deployment.speculation
    assert (swept.depth_static, swept.inter_token_s_max) == (7, None)


@pytest.mark.parametrize("depths", [[9], [3, 100]])
def test_a_depth_that_the_head_was_not_trained_for_is_named(depths: list[int]) -> None:
    with pytest.raises(ConfigError, match=rf"--depths = {depths[-1]}: the p-eagle head was trained to depth 8"):
        plan_engines(deployment(), None, [], depths, eager=False)


def test_a_fixed_engine_drafts_so_much_and_cannot_change_it() -> None:
    plans = plan_engines(deployment(), None, ["none", "p-eagle"], [0, 7], eager=False, adaptive=True, fixed=7)
    assert [(plan.name, plan.depths, plan.live) for plan in plans] == [
        ("none", (0,), False),
        ("p-eagle", (0, 7), True),
        ("p-eagle fixed", (7,), False),
    ]
    speculation = plans[2].deployment.speculation
    assert (speculation.live_depth, speculation.adaptive, speculation.depth_static) == (False, False, 7)
    names = [each.name for each in variants_of(plans, adaptive=True, held=7)]
    assert names[3:] == ["p-eagle K=adaptive", "p-eagle K=7 held", "p-eagle fixed K=7"]


def test_a_fixed_k_is_one_that_the_others_can_draft() -> None:
    with pytest.raises(ConfigError, match=r"--fixed.*7.*ends at 3"):
        plan_engines(deployment(), None, ["none", "p-eagle"], [0, 3], eager=False, fixed=7)


def test_p_eagle_without_live_depth_gets_an_engine_for_each_depth() -> None:
    plans = plan_engines(deployment(speculation={"live_depth": False}), None, ["p-eagle"], [1, 5], eager=False)
    assert [(plan.depths, plan.live) for plan in plans] == [((1,), False), ((5,), False)]


def test_no_speculation_means_no_drafter_and_no_argument_that_needs_one() -> None:
    (plan,) = plan_engines(deployment(), None, ["none"], [7], eager=False)
    assert plan.deployment.drafter is None
    assert not plan.deployment.speculates
    assert "per_request_spec_decode_metrics" not in plan.deployment.engine


@pytest.mark.parametrize("eager", [True, False])
def test_every_engine_runs_in_the_same_mode(eager: bool) -> None:
    written = deployment(engine={"enforce_eager": not eager})
    plans = plan_engines(written, deployment("eagle3"), [], [3], eager=eager)
    assert {plan.deployment.engine["enforce_eager"] for plan in plans} == {eager}


def test_a_method_that_no_file_offers_is_named_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"--methods.*eagle3.*available: none, p-eagle.*--baseline"):
        plan_engines(deployment(), None, ["none", "eagle3"], [7], eager=False)


def test_drafters_of_different_targets_are_not_compared() -> None:
    with pytest.raises(ConfigError, match=r"--baseline.*target"):
        plan_engines(deployment(), deployment("eagle3", target="org/other"), [], [7], eager=False)


def test_two_files_of_one_method_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--baseline.*p-eagle"):
        plan_engines(deployment(), deployment(), [], [7], eager=False)


def test_engines_on_one_gpu_share_its_memory_and_engines_on_a_cpu_are_left_alone() -> None:
    gpu = plan_engines(deployment(), None, [], [7], eager=False)
    assert [plan.deployment.engine["gpu_memory_utilization"] for plan in gpu] == [0.45, 0.45]
    cpu = plan_engines(deployment(resources={"accelerator": "cpu"}), None, [], [7], eager=False)
    assert all("gpu_memory_utilization" not in plan.deployment.engine for plan in cpu)
