"""Builds the Serve application from deployment files.

`serve run peagle.serve.app:build_app deployments=deployments/embedded.yaml` and a RayService's `import_path` both use
`build_app`; its arguments are plain values, so that they can be written in YAML.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import to_model_metadata
from ray.llm._internal.serve.core.ingress.ingress import make_fastapi_ingress
from ray.serve.llm import LLMConfig, build_llm_deployment

from peagle.api.api_settings import ApiSettings, read_settings
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress
from peagle.config import Deployment
from peagle.errors import ConfigError
from peagle.import_paths import DRAIN_AWARE_ROUTER, REQUEST_ROUTER
from peagle.router.dispatch import POLICIES
from peagle.serve import haproxy
from peagle.serve.launch.serving_arguments import engine_settings, read_deployments
from peagle.serve.replica.server import LocalCheckpoint, PeagleServer
from peagle.serve.routing.router_deployment import bind_router

# Open requests per ingress process at which another is started: each is one Python event loop that relays streams.
INGRESS_TARGET_REQUESTS = 64
INGRESS_MAX_REQUESTS = 1_000_000
# A dead process is replaced after the next check, an unhealthy one after three checks; until then requests are still
# sent to it, or wait.
HEALTH = {"health_check_period_s": 2.0}
DRAIN_AWARE = {"request_router_config": {"request_router_class": DRAIN_AWARE_ROUTER}}


def build_app(args: Mapping[str, Any]) -> serve.Application:
    """Build one application that serves every deployment in `args`.

    Args:
        args: `deployments`, a list of paths or mappings, or one of them; `api`, the fields of `ApiSettings`.

    Raises:
        ConfigError: An argument or a deployment is invalid, or two deployments have the same name.
    """
    unknown = sorted(set(args) - {"deployments", "api"})
    if unknown:
        name = unknown[0]
        raise ConfigError(f"args.{name}", args[name], "there is no such argument", "Use deployments or api.")
    return compose(read_deployments(args.get("deployments")), read_settings(args.get("api")))


def compose(deployments: Sequence[Deployment], settings: ApiSettings) -> serve.Application:
    """Bind one server deployment per model behind one ingress, and a Router if a decision needs it.

    Decisions are K, a request's replica, and whether a client is within its limits.
    """
    common = {**parting_options(settings), **HEALTH}
    configs = {
        each.name: llm_config(each, {**common, **routing_options(each, settings)}, settings) for each in deployments
    }
    routed = {each.name: each for each in deployments if each.adapts or is_dispatched(each)}
    router = bind_router(routed) if routed or settings.keys_file is not None else None
    servers = {
        each.name: build_llm_deployment(
            configs[each.name],
            bind_kwargs={
                "deployment": each,
                "router": router if each.name in routed else None,
                "metrics": settings.metrics,
                "dispatched": is_dispatched(each),
                "grammar": settings.grammar,
            },
        )
        for each in deployments
    }
    ingress = make_fastapi_ingress(PeagleIngress, endpoint_map=ENDPOINTS, app=build_http(settings))
    # HAProxy chooses among ingress processes itself, and Serve refuses a router for them. A HAProxy that peagle has not
    # set up is refused: it would not pass on client addresses, and every client would look like a local one.
    router_options = {} if haproxy.is_in_front() else DRAIN_AWARE
    options = {**ingress_options(deployments, settings), **parting_options(settings), **HEALTH, **router_options}
    return serve.deployment(ingress, name="Ingress", **options).bind(
        llm_deployments=servers,
        model_cards={name: to_model_metadata(name, config) for name, config in configs.items()},
        deployments={deployment.name: deployment for deployment in deployments},
        router=router,
    )


def ingress_options(deployments: Sequence[Deployment], settings: ApiSettings) -> dict[str, Any]:
    """Return the ingress's Serve options: it accepts every request, and scales on open requests.

    The ingress refuses excess requests by each model's own limits. A request queued before the ingress could not be
    refused, and would delay probes behind it.
    """
    return {
        "max_ongoing_requests": INGRESS_MAX_REQUESTS,
        # A redeployment starts the new ingress before stopping the old one; GPUs may not have room for two models.
        "max_surge_percent": 100,
        "autoscaling_config": {
            "min_replicas": settings.ingresses,
            "max_replicas": max(settings.ingresses, sum(deployment.replicas.max for deployment in deployments)),
            "target_ongoing_requests": INGRESS_TARGET_REQUESTS,
        },
    }


def parting_options(settings: ApiSettings) -> dict[str, Any]:
    """Return the Serve options that let a stopping replica finish its requests."""
    return {"graceful_shutdown_timeout_s": settings.request_timeout_s}


def is_dispatched(deployment: Deployment) -> bool:
    """Whether there is a choice of replicas that needs the Router's snapshots."""
    return deployment.replicas.max > 1 and deployment.routing.policy in POLICIES


def routing_options(deployment: Deployment, settings: ApiSettings) -> dict[str, Any]:
    """Return the Serve options for request routing."""
    wait = {"replica_wait_s": settings.replica_wait_s}
    if not is_dispatched(deployment):
        return {"request_router_config": {**DRAIN_AWARE["request_router_config"], "request_router_kwargs": wait}}
    router = REQUEST_ROUTER
    return {
        "request_router_config": {
            "request_router_class": router,
            "request_router_kwargs": {
                **wait,
                "model": deployment.name,
                "policy": deployment.routing.policy,
                # vLLM's default is to cache prefixes.
                "caches_prefixes": deployment.engine.get("enable_prefix_caching") is not False,
            },
        }
    }


def llm_config(
    deployment: Deployment, serve_options: Mapping[str, Any] | None = None, settings: ApiSettings | None = None
) -> LLMConfig:
    """Return Ray Serve LLM's configuration of one deployment, with `serve_options` added."""
    engine = engine_settings(deployment, settings)
    source = engine.pop("model")
    engine.pop("served_model_name", None)
    resources = deployment.resources
    on_gpu = resources.accelerator == "gpu"
    options: dict[str, Any] = {}
    if resources.accelerator_type is not None:
        options["accelerator_type"] = resources.accelerator_type
    if deployment.target.is_local:
        options["callback_config"] = {"callback_class": LocalCheckpoint}
    if deployment.environment:
        options["runtime_env"] = {"env_vars": dict(deployment.environment)}
    return LLMConfig(
        model_loading_config={"model_id": deployment.name, "model_source": source},
        engine_kwargs=engine,
        accelerator_config={"kind": resources.accelerator},
        # Ray merges the replica's own share into the first worker's bundle. Tensor parallel ranks stay on one node:
        # they communicate after every layer, and an autoscaler asked for single GPUs would add one node for each.
        placement_group_config={
            "bundle_per_worker": {"GPU": 1} if on_gpu else {"CPU": resources.cpus},
            "strategy": "STRICT_PACK" if deployment.pipeline_parallel_size == 1 else "PACK",
        },
        deployment_config={
            **replica_count(deployment),
            "max_ongoing_requests": deployment.routing.max_ongoing_requests,
            "max_queued_requests": deployment.routing.max_queued_requests,
            "ray_actor_options": {"num_cpus": resources.cpus if on_gpu else 0},
            **(serve_options or {}),
        },
        server_cls=PeagleServer,
        # vLLM would report to Ray after every step; see engine_series.
        log_engine_metrics=False,
        # Otherwise Ray delays every token of a stream by up to 50 ms.
        experimental_configs={"stream_batching_interval_ms": 0},
        **options,
    )


def replica_count(deployment: Deployment) -> dict[str, Any]:
    """Return a fixed replica count, or the bounds within which Serve scales on open requests."""
    replicas = deployment.replicas
    if replicas.min == replicas.max:
        return {"num_replicas": replicas.min}
    max_num_seqs = deployment.engine.get("max_num_seqs")
    limit = deployment.routing.max_ongoing_requests
    # Fill batches before adding a replica: another engine costs more than a larger batch.
    target = max(1, min(limit, max_num_seqs)) if isinstance(max_num_seqs, int) else limit
    return {
        "autoscaling_config": {
            "min_replicas": replicas.min,
            "max_replicas": replicas.max,
            "target_ongoing_requests": target,
        }
    }
