"""How a deployment file becomes Ray Serve LLM's own configuration. Needs vLLM installed, but starts no engine."""

from typing import Any

import pytest
from ray.serve.config import RequestRouterConfig
from ray.util.accelerators import accelerators

from peagle.api.api_settings import ApiSettings, GrammarSettings
from peagle.config import ACCELERATOR_TYPES, Deployment, parse_deployment
from peagle.errors import ConfigError
from peagle.serve.app import (
    build_app,
    compose,
    ingress_options,
    llm_config,
    parting_options,
    replica_count,
    routing_options,
)
from peagle.serve.replica.server import LocalCheckpoint, PeagleServer
from peagle.serve.routing.draining import DrainAwareRouter
from peagle.serve.routing.request_router import PolicyRouter
from support.platforms.local_ray import local_ray


def _deployment(**fields: Any) -> Deployment:
    raw = {"name": "m", "target": {"source": "org/target"}, "speculation": {"enabled": False}}
    return parse_deployment({"resources": {"accelerator": "cpu"}, **raw, **fields}, origin="test")


def test_a_cpu_replica_takes_its_cpus_in_one_bundle() -> None:
    config = llm_config(_deployment(resources={"accelerator": "cpu", "cpus": 1.5}))
    assert config.get_engine_config().placement_bundles == [{"CPU": 1.5}]
    assert config.deployment_config["ray_actor_options"] == {"num_cpus": 0}


def test_a_gpu_replica_takes_a_bundle_for_each_rank_on_the_asked_gpu() -> None:
    resources = {"accelerator": "gpu", "accelerator_type": "B200", "tensor_parallel_size": 4, "cpus": 8.0}
    config = llm_config(_deployment(resources=resources))
    bundles = config.get_engine_config().placement_bundles
    assert len(bundles) == 4
    assert all(bundle["GPU"] == 1 and bundle["accelerator_type:B200"] > 0 for bundle in bundles)
    assert config.deployment_config["ray_actor_options"] == {"num_cpus": 8.0}
    assert config.get_engine_config().placement_strategy == "STRICT_PACK"
    staged = llm_config(_deployment(resources=resources, engine={"pipeline_parallel_size": 2})).get_engine_config()
    assert (len(staged.placement_bundles), staged.placement_strategy) == (8, "PACK")


def test_streams_are_not_batched_and_the_server_is_ours() -> None:
    config = llm_config(_deployment())
    assert config.experimental_configs["stream_batching_interval_ms"] == 0
    assert config.server_cls is PeagleServer


def test_only_a_local_checkpoint_skips_the_download() -> None:
    local = llm_config(_deployment(target={"source": "/somewhere"}))
    remote = llm_config(_deployment())
    assert local.callback_config.callback_class is LocalCheckpoint
    assert remote.callback_config.callback_class is not LocalCheckpoint


def test_the_environment_reaches_the_replica() -> None:
    config = llm_config(_deployment(environment={"VLLM_LOGGING_LEVEL": "WARNING"}))
    assert config.runtime_env == {"env_vars": {"VLLM_LOGGING_LEVEL": "WARNING"}}


def test_equal_bounds_are_a_fixed_count_and_others_scale_on_full_batches() -> None:
    assert replica_count(_deployment(replicas={"min": 3, "max": 3})) == {"num_replicas": 3}
    scaled = replica_count(_deployment(replicas={"min": 1, "max": 4}, engine={"max_num_seqs": 32}))
    assert scaled["autoscaling_config"] == {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 32}


def test_a_removed_replica_may_finish_requests_within_the_api_timeout() -> None:
    config = llm_config(_deployment(), parting_options(ApiSettings(request_timeout_s=77.0)))
    assert config.deployment_config["graceful_shutdown_timeout_s"] == 77.0


@pytest.mark.parametrize(
    ("fields", "router"),
    [
        ({}, DrainAwareRouter),
        ({"replicas": {"min": 1, "max": 2}}, PolicyRouter),
        ({"replicas": {"min": 2, "max": 2}, "routing": {"policy": "power-of-two"}}, DrainAwareRouter),
    ],
)
def test_replicas_are_chosen_among_by_when_they_finish_unless_there_is_one_or_serve_is_to_choose(
    fields: dict[str, Any], router: type
) -> None:
    config = RequestRouterConfig(**routing_options(_deployment(**fields), ApiSettings())["request_router_config"])
    assert config.get_request_router_class() is router
    told = {"model": "m", "policy": "soonest", "caches_prefixes": True} if router is PolicyRouter else {}
    assert config.request_router_kwargs == {"replica_wait_s": ApiSettings().replica_wait_s, **told}


def test_dispatch_is_told_of_engines_that_keep_no_prefixes() -> None:
    fields = {"replicas": {"min": 1, "max": 2}, "engine": {"enable_prefix_caching": False}}
    options = routing_options(_deployment(**fields), ApiSettings())["request_router_config"]
    assert options["request_router_kwargs"]["caches_prefixes"] is False


@pytest.mark.parametrize("queued", [5, -1])
def test_the_ingress_takes_more_than_all_models_may_hold(queued: int) -> None:
    routing = {"max_ongoing_requests": 10, "max_queued_requests": queued}
    options = ingress_options(
        [_deployment(routing=routing, replicas={"min": 1, "max": 2}), _deployment()], ApiSettings()
    )
    assert options["max_ongoing_requests"] > 10 * (2 * 10 + 5 + 256 + 1024)
    assert options["autoscaling_config"]["max_replicas"] == 3


def test_as_many_ingress_processes_run_as_are_asked_for() -> None:
    scaling = ingress_options([_deployment()], ApiSettings(ingresses=2))["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 2)


@pytest.mark.parametrize("args", [{}, {"deployments": []}, {"deployment": "x.yaml"}, {"deployments": "absent.yaml"}])
def test_wrong_arguments_are_named_before_anything_is_built(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build_app(args)


def test_vllm_keeps_its_statistics_and_ray_is_not_told_of_every_step() -> None:
    config = llm_config(_deployment())
    assert config.log_engine_metrics is False
    assert config.engine_kwargs["disable_log_stats"] is False


def test_the_kinds_of_gpu_are_those_that_ray_takes() -> None:
    makers = ("NVIDIA_", "AMD_INSTINCT_", "INTEL_MAX_", "METAX_")
    known = {value for name, value in vars(accelerators).items() if name.startswith(makers)}
    assert set(ACCELERATOR_TYPES) == known | {"A10"}
    assert (
        llm_config(_deployment(resources={"accelerator": "gpu", "accelerator_type": "A10"})).accelerator_type == "A10G"
    )


@pytest.mark.parametrize(("keys_file", "bound"), [(None, False), ("keys.yaml", True)])
def test_a_router_keeps_clients_limits_even_where_it_has_nothing_else_to_do(keys_file: str | None, bound: bool) -> None:
    with local_ray():  # Ray would otherwise connect to any cluster on this machine
        app = compose([_deployment()], ApiSettings(keys_file=keys_file))
    assert (app._bound_deployment.init_kwargs["router"] is not None) == bound


def test_an_engine_is_told_what_a_grammar_may_take_for_a_token() -> None:
    settings = ApiSettings(grammar=GrammarSettings(max_mask_s=0.02))
    assert llm_config(_deployment(), {}, settings).engine_kwargs["additional_config"]["peagle"]["mask_s_max"] == 0.02
    assert llm_config(_deployment()).engine_kwargs["additional_config"]["peagle"]["mask_s_max"] == 0.05
