"""Invalid values are refused before an install, with the value's path, the problem and the fix."""

from collections.abc import Mapping
from typing import Any

import pytest
from helm_python import HelmRenderError, HelmValuesError

from support.kubernetes.rendered_chart import MINIMAL, at, laid_over, render

DEPLOYMENT = "models.small.deployment"


def other_model(**fields: Any) -> dict[str, Any]:
    """MINIMAL's model again, under another key."""
    return at("models.other.deployment", {**MINIMAL["models"]["small"]["deployment"], **fields})


# (changes to values that work, what the message says)
COMBINATIONS: dict[str, tuple[Mapping[str, Any], str]] = {
    "no model": (at("models.small.enabled", False), "models: no model is enabled. Pass a ready file"),
    "an incremental upgrade without its steps": (
        at("ray.upgradeStrategy", "NewClusterWithIncrementalUpgrade"),
        "ray.upgradeOptions.gatewayClassName is missing while ray.upgradeStrategy is NewClusterWithIncrementalUpgrade.",
    ),
    **{
        f"a folder of the node without {field}": (
            {"modelCache": {"type": "hostPath", "hostPath": "/m"}, "podSecurity": {field: None}},
            "podSecurity.runAsUser or runAsGroup is unset while modelCache.type is hostPath",
        )
        for field in ("runAsUser", "runAsGroup")
    },
    "no worker group": (at("workerGroups", None), "workerGroups: it is empty."),
    "K above the trained depth": (
        at(f"{DEPLOYMENT}.speculation", {"depth_max": 11, "depth_static": 3}),
        f"{DEPLOYMENT}.speculation.depth_max is 11, above drafter.trained_depth, which is 8. Lower it to 8.",
    ),
    "default K above the trained depth": (
        at(f"{DEPLOYMENT}.drafter.trained_depth", 4),
        f"{DEPLOYMENT}.speculation.depth_max is 7, above drafter.trained_depth, which is 4. Lower it to 4.",
    ),
    "static K above the most": (
        at(f"{DEPLOYMENT}.speculation.depth_max", 3),
        f"{DEPLOYMENT}.speculation.depth_static is 7, above depth_max, which is 3. Lower it to 3.",
    ),
    "no drafter": (at(f"{DEPLOYMENT}.drafter", None), f"{DEPLOYMENT}.drafter is missing while speculation.enabled"),
    "a drafter of a model that embeds": (
        at(f"{DEPLOYMENT}.engine.runner", "pooling"),
        f"{DEPLOYMENT}.drafter is set, but a model that embeds or scores text (engine.runner is pooling)",
    ),
    "fewer replicas than the least": (
        at(f"{DEPLOYMENT}.replicas", {"min": 2, "max": 1}),
        f"{DEPLOYMENT}.replicas.max is 1, below replicas.min, which is 2. Raise it to 2.",
    ),
    "tensor parallel beyond the node": (
        laid_over(at(f"{DEPLOYMENT}.resources.tensor_parallel_size", 16), at("workerGroups.b200.gpus", 8)),
        f"{DEPLOYMENT}.resources.tensor_parallel_size is 16, but the largest suitable pod has 8 GPUs",
    ),
    "data parallel with live depth": (
        at(f"{DEPLOYMENT}.engine.data_parallel_size", 2),
        f"{DEPLOYMENT}.engine.data_parallel_size is 2: with data parallel ranks in one engine, live depth",
    ),
    "an argument that the platform sets": (
        at(f"{DEPLOYMENT}.engine.revision", "x"), f"{DEPLOYMENT}.engine.revision is set by target.revision. Remove it"
    ),
    "an argument written as a flag": (
        {"models": {"small": {"deployment": {"engine": {"max-num-seqs": 8}}}}},
        f"{DEPLOYMENT}.engine.max-num-seqs is not an engine argument.",
    ),
    "a revision of a folder": (
        at(f"{DEPLOYMENT}.target", {"source": "/models/x", "revision": "main"}),
        f"{DEPLOYMENT}.target.revision is main, but the source is a folder",
    ),
    "a source that is neither": (
        at(f"{DEPLOYMENT}.drafter.source", "x/y/z"), f"{DEPLOYMENT}.drafter.source is x/y/z: it is neither a repository"
    ),
    "tensor parallel without GPUs": (
        at(f"{DEPLOYMENT}.resources", {"accelerator": "cpu", "tensor_parallel_size": 2, "accelerator_type": None}),
        f"{DEPLOYMENT}.resources.tensor_parallel_size is 2, but accelerator is cpu. Write 1,",
    ),
    "stages without GPUs": (
        laid_over(
            at(f"{DEPLOYMENT}.resources", {"accelerator": "cpu", "accelerator_type": None}),
            at(f"{DEPLOYMENT}.engine.pipeline_parallel_size", 2),
        ),
        f"{DEPLOYMENT}.engine.pipeline_parallel_size is 2, but accelerator is cpu. Write 1,",
    ),
    "a type of GPU without GPUs": (
        at(f"{DEPLOYMENT}.resources", {"accelerator": "cpu", "accelerator_type": "B200"}),
        f"{DEPLOYMENT}.resources.accelerator_type is B200, but accelerator is cpu. Write null,",
    ),
    "a queue for nobody": (
        at(f"{DEPLOYMENT}.routing.max_queued_requests", 0), f"{DEPLOYMENT}.routing.max_queued_requests is 0, but Ray"
    ),
    "a K that adapts and cannot change": (
        at(f"{DEPLOYMENT}.speculation", {"adaptive": True, "live_depth": False}),
        f"{DEPLOYMENT}.speculation.adaptive is true while live_depth is false.",
    ),
    "a target that nothing adapts to": (
        at(f"{DEPLOYMENT}.speculation", {"adaptive": False, "inter_token_s_max": 0.02}),
        f"{DEPLOYMENT}.speculation.inter_token_s_max is 0.02, but depth is not adaptive. Write adaptive: true.",
    ),
    "a target for a K that cannot change": (
        at(f"{DEPLOYMENT}.speculation", {"live_depth": False, "inter_token_s_max": 0.02}),
        f"{DEPLOYMENT}.speculation.inter_token_s_max is 0.02, but depth is not adaptive. Write live_depth: true.",
    ),
    "a target that another drafter's K does not adapt to by itself": (
        laid_over(
            at(f"{DEPLOYMENT}.drafter.method", "eagle3"), at(f"{DEPLOYMENT}.speculation.inter_token_s_max", 0.02)
        ),
        f"{DEPLOYMENT}.speculation.inter_token_s_max is 0.02, but depth is not adaptive. Write adaptive: true.",
    ),
    "a label that pods are found by": (
        at("commonLabels", {"app.kubernetes.io/created-by": "x", "app.kubernetes.io/part-of": "x"}),
        "commonLabels has app.kubernetes.io/part-of, which the chart sets itself. Remove it,",
    ),
    **{
        f"a label of {path} that pods are found by": (
            at(f"{path}.labels", {"ray.io/group": "x"}), f"{path}.labels has ray.io/group, which the chart sets itself."
        )
        for path in ("head", "workerGroups.b200")
    },
    "drained before a request may end": (
        at("api.request_timeout_s", 700.5),
        "drain.timeoutSeconds is 600, but a request may take 700.5 s (api.request_timeout_s). Raise it to that,",
    ),
    "more GPUs for a pipeline than there are": (
        at(f"{DEPLOYMENT}.engine.pipeline_parallel_size", 2),
        "models: the minimum number of replicas (replicas.min) needs 2 GPUs of type B200, but workerGroups",
    ),
    "one name twice": (other_model(), "models.small.deployment.name is small, the same as models.other.deployment"),
    "a GPU that no group has": (
        at(f"{DEPLOYMENT}.resources.accelerator_type", "H200"), f"{DEPLOYMENT}.resources needs a GPU of type H200"
    ),
    "more GPUs than there are": (
        at(f"{DEPLOYMENT}.replicas", {"min": 2, "max": 2}),
        "models: the minimum number of replicas (replicas.min) needs 2 GPUs of type B200, but workerGroups have at",
    ),
    "more GPUs than there are, of two models": (
        other_model(name="other"), "models: the minimum number of replicas (replicas.min) needs 2 GPUs of type B200"
    ),
    "more CPUs than there are": (
        at(f"{DEPLOYMENT}.resources.cpus", 16), "workerGroups: they have at most 16 CPUs (cpus * maxReplicas), but the"
    ),
    **{
        f"more CPUs than pods of {cpus} CPUs have": (
            laid_over(at(f"{DEPLOYMENT}.resources.cpus", counted), at("workerGroups.b200.cpus", cpus)),
            f"Raise cpus or maxReplicas. Ray counts whole CPUs, so workerGroups.b200.cpus {cpus} counts as {counted}: "
            f"to share a node's CPUs, write whole cpus and cpuRequest: {cpus}.",
        )
        for cpus, counted in (("500m", 1), (1.5, 2))
    },
    "more CPUs than a pod of 1500m has, rounded up": (
        laid_over(at(f"{DEPLOYMENT}.resources.cpus", 3), at("workerGroups.b200.cpus", "1500m")),
        f"{DEPLOYMENT}.resources.cpus is 3, but the largest suitable pod has 2 (workerGroups.*.cpus)",
    ),
    "more CPUs than one pod has": (
        laid_over(
            at(f"{DEPLOYMENT}.resources.cpus", 32), at("workerGroups.b200", {"minReplicas": 3, "maxReplicas": 3})
        ),
        f"{DEPLOYMENT}.resources.cpus is 32, but the largest suitable pod has 16 (workerGroups.*.cpus)",
    ),
    **{
        f"a request of {asked} CPUs, above a limit of {limit}": (
            at("workerGroups.b200", {"cpuRequest": asked, "cpus": limit}),
            f"workerGroups.b200.cpuRequest is {asked}, above cpus, which is {limit} and the pod's limit. Lower it,",
        )
        for asked, limit in ((17, 16), ("16500m", 16), (2.5, "2"), ("2100m", "2.05"))
    },
    "fewer pods than the least": (
        at("workerGroups.b200", {"minReplicas": 3}), "workerGroups.b200.maxReplicas is 1, below minReplicas, which is 3"
    ),
    "bounds without an autoscaler": (
        at("workerGroups.b200", {"maxReplicas": 3}), "but autoscaling.enabled is false. Write the same"
    ),
    "a folder of the node without its path": (at("modelCache.type", "hostPath"), "modelCache.hostPath is empty"),
    "an external store without its address": (at("gcs.store", "external"), "gcs.external.address is empty"),
    "an Ingress and a route": (
        {"ingress": {"enabled": True}, "gatewayRoute": {"enabled": True, "gateway": {"name": "g"}}},
        "gatewayRoute.enabled and ingress.enabled are both true.",
    ),
    "alerts on metrics that are off": (
        laid_over(at("monitoring.alerts.enabled", True), at("api.metrics", False)), "api.metrics is false while"
    ),
    "a route without its Gateway": (at("gatewayRoute.enabled", True), "gatewayRoute.gateway.name is empty"),
    "a certificate without its host": (
        at("ingress", {"enabled": True, "host": "", "tlsSecret": "s"}), "ingress.host is empty while ingress.tlsSecret"
    ),
    "spans over gRPC to a path": (
        at("tracing.endpoint", "http://c:4318/v1/traces"),
        "tracing.endpoint is http://c:4318/v1/traces, but gRPC has no path. Write tracing.protocol: http/protobuf",
    ),
    "spans over HTTP to no path": (
        at("tracing", {"endpoint": "http://c:4318", "protocol": "http/protobuf"}),
        "tracing.endpoint is http://c:4318, without the path for spans. Add it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COMBINATIONS)
def test_values_that_cannot_work_together_are_refused(case: str) -> None:
    changes, message = COMBINATIONS[case]
    with pytest.raises(HelmRenderError) as refused:
        render(laid_over(MINIMAL, changes))
    assert message in str(refused.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    changes = laid_over(at("gcs.store", "external"), at("modelCache.type", "hostPath"))
    with pytest.raises(HelmRenderError) as refused:
        render(laid_over(MINIMAL, changes))
    assert "gcs.external.address" in str(refused.value)
    assert "modelCache.hostPath" in str(refused.value)


# (values that the schema refuses, the place that it names)
FIELDS: dict[str, tuple[Mapping[str, Any], str]] = {
    "an unknown value": ({"models_": {}}, "'models_'"),
    "an unknown value inside": (at("image.tags", "x"), "/image"),
    "an unknown field of a deployment": (at(f"{DEPLOYMENT}.depth", 3), "/models/small/deployment"),
    "an unknown field of a section": (at(f"{DEPLOYMENT}.speculation.depth", 3), "/models/small/deployment/speculation"),
    "a deployment without its name": ({"models": {"x": {"deployment": {"target": {"source": "a"}}}}}, "'name'"),
    "an unknown field of a group": (at("workerGroups.b200.gpu", 1), "/workerGroups/b200"),
    "a group with a name that no object may have": (at("workerGroups", {"B_200": {}}), "'B_200'"),
    "text for a number": (at("drain.timeoutSeconds", "600"), "/drain/timeoutSeconds"),
    "a depth beyond reason": (at(f"{DEPLOYMENT}.speculation.depth_max", 65), "depth_max"),
    "a quantity that is none": (at("head.sharedMemory", "1 GB"), "/head/sharedMemory"),
    **{
        f"{cpus} CPUs": (at("workerGroups.b200.cpus", cpus), "/workerGroups/b200/cpus")
        for cpus in (0, "0", "0.0", "0m", -1, "2 cores", "500M", "")
    },
    "a digest that is none": (at("image.digest", "sha256:1"), "/image/digest"),
    "an unknown choice": (at("gcs.store", "memory"), "/gcs/store"),
    "a setting of the API that there is not": (at("api.max_body", 1), "/api"),
    "an origin with a path": (at("api.cors_origins", ["https://chat.example.org/"]), "/api/cors_origins"),
    "a variable of no name": (at(f"{DEPLOYMENT}.environment", {"A B": "x"}), "invalid propertyName 'A B'"),
    "a GPU that Ray does not know": (at(f"{DEPLOYMENT}.resources.accelerator_type", "h100"), "accelerator_type"),
    "a collector without its port": (at("tracing.endpoint", "http://collector"), "/tracing/endpoint"),
    "a share beyond all requests": (at("tracing.samplingRatio", 1.5), "/tracing/samplingRatio"),
    "a name too long for KubeRay": (at("fullnameOverride", "x" * 41), "/fullnameOverride"),
}


@pytest.mark.parametrize("case", FIELDS)
def test_a_value_that_cannot_be_right_is_refused_by_the_schema(case: str) -> None:
    changes, place = FIELDS[case]
    with pytest.raises(HelmValuesError) as refused:
        render(laid_over(MINIMAL, changes))
    assert place in str(refused.value)


@pytest.mark.parametrize(("asked", "limit"), [(16, 16), ("16000m", "16"), ("0.5", "16"), (2.5, "16")])
def test_a_request_of_no_more_cpus_than_the_limit_is_not_refused(asked: object, limit: object) -> None:
    render(laid_over(MINIMAL, at("workerGroups.b200", {"cpuRequest": asked, "cpus": limit})))


def test_a_model_that_embeds_needs_no_drafter() -> None:
    embeds = laid_over(MINIMAL, at(f"{DEPLOYMENT}.engine.runner", "pooling"))
    render(laid_over(embeds, at(f"{DEPLOYMENT}.drafter", None)))


@pytest.mark.parametrize("speculation", [{"inter_token_s_max": 0.02}, {"live_depth": False}, {"adaptive": None}])
def test_a_k_that_adapts_by_default_is_not_refused(speculation: dict[str, object]) -> None:
    render(laid_over(MINIMAL, at(f"{DEPLOYMENT}.speculation", speculation)))


def test_false_and_zero_are_values_and_not_gaps() -> None:
    """A default may not stand in for what was said."""
    off = laid_over(MINIMAL, at(f"{DEPLOYMENT}.speculation", {"enabled": False, "depth_max": 20, "depth_static": 0}))
    (deployment,) = render(off).arguments["deployments"]
    assert deployment["speculation"] == {"enabled": False, "depth_max": 20, "depth_static": 0}
    cpu = at(f"{DEPLOYMENT}.resources", {"accelerator": "cpu", "accelerator_type": None})
    rendered = render(laid_over(laid_over(MINIMAL, cpu), at("workerGroups.b200.gpus", 0)))
    assert "nvidia.com/gpu" not in rendered.container["resources"]["limits"]
