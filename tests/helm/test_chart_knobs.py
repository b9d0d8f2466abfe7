"""A test for each value of values.yaml: set it, and find it in the rendered objects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from peagle.import_paths import TRACE_EXPORTER
from peagle.tracing import environment
from support.kubernetes.rendered_chart import (
    CHART,
    FULLNAME,
    MINIMAL,
    Rendered,
    at,
    laid_over,
    render,
    schema,
    value_paths,
)

ABSENT = object()
SAME = object()


@dataclass(frozen=True)
class Knob:
    """One value: its path, what to set it to, where it shows, and as what. `given` are other values that it needs.

    `where` is a path of keys, from a property of `Rendered` or from Kind/name-suffix.
    """

    path: str
    value: Any
    where: str
    shows: Any = SAME
    given: Mapping[str, Any] = field(default_factory=dict)


PVC = at("modelCache.type", "pvc")
CLAIM = "PersistentVolumeClaim/-model-cache"
EXTERNAL = {"gcs": {"store": "external", "external": {"address": "redis:6379"}}}
GCS = "cluster gcsFaultToleranceOptions"
REDIS = "StatefulSet/-redis spec"
REDIS_POD = f"{REDIS} template spec containers 0"
INGRESS = at("ingress.enabled", True)
INGRESS_RULE = "Ingress/ spec rules 0"
ROUTE = {"gatewayRoute": {"enabled": True, "gateway": {"name": "g"}}}
MONITORS = at("monitoring.podMonitors.enabled", True)
ALERTS, DASHBOARDS = at("monitoring.alerts.enabled", True), at("monitoring.dashboards.enabled", True)
RUNBOOK = "dashboards/runbooks.md#peaglenoreplica"
BOARDS = sorted(path.stem for path in (CHART / "files" / "dashboards").glob("*.json"))
TRACED = at("tracing.endpoint", "http://collector:4317")
SCALED = at("autoscaling.enabled", True)
PEERS = [{"podSelector": {"matchLabels": {"a": "b"}}}]
RESOURCES = {"requests": {"cpu": "3", "memory": "3Gi"}, "limits": {"memory": "3Gi"}}
LIMITS = {"limits": {"memory": "3Gi"}}
TOLERATIONS = [{"key": "k", "operator": "Exists"}]
AFFINITY = {"nodeAffinity": {"x": "y"}}
OWN_CACHE = 'test "$(stat -c %u:%g /var/cache/peagle)" = 10001:10001 || chown 10001:10001 /var/cache/peagle'
GROUP = at("workerGroups.b200", {"minReplicas": 3, "maxReplicas": 3})

GENERAL = (
    Knob("fullnameOverride", "other", "names RayService", ["other"]),
    Knob("commonLabels", {"team": "x"}, "service serveService metadata labels team", "x"),
    Knob("commonLabels", {"team": "x"}, "worker metadata labels team", "x"),
    Knob("models", at("small.deployment.name", "new"), "arguments deployments 0 name", "new"),
    Knob("api", {"request_timeout_s": 60}, "arguments api"),
    Knob("image.repository", "r/p", "container image", "r/p:0.2.0-gpu"),
    Knob("image.variant", "cpu", "container image", "peagle:0.2.0-cpu"),
    Knob("image.tag", "t", "head spec containers 0 image", "peagle:t"),
    Knob("image.digest", f"sha256:{'0' * 64}", "container image", f"peagle@sha256:{'0' * 64}"),
    Knob("image.pullPolicy", "Always", "container imagePullPolicy"),
    Knob("image.pullSecrets", ["a"], "worker spec imagePullSecrets", [{"name": "a"}]),
    Knob("image.pullSecrets", ["a"], "Pod/-test spec imagePullSecrets", [{"name": "a"}]),
    Knob("huggingFace.existingSecret", "s", "env HF_TOKEN secretKeyRef", {"name": "s", "key": "token"}),
    Knob("huggingFace.tokenKey", "k", "env HF_TOKEN secretKeyRef key", given=at("huggingFace.existingSecret", "s")),
    Knob("apiKeys.existingSecret", "s", "volumes api-keys secret secretName"),
    Knob("apiKeys.existingSecret", "s", "arguments api keys_file", "/etc/peagle/keys"),
    Knob("apiKeys.existingSecret", "", "volumes api-keys secret secretName", f"{FULLNAME}-api-keys"),
    Knob("apiKeys.key", "k", "volumes api-keys secret items 0 key", given=at("apiKeys.existingSecret", "s")),
    Knob("env", {"A": "1"}, "env A", "1"),
    Knob("envFromSecrets", ["s"], "container envFrom", [{"secretRef": {"name": "s"}}]),
    Knob("envFromSecrets", ["s"], "head spec containers 0 envFrom", [{"secretRef": {"name": "s"}}]),
    Knob("modelCache.type", "none", "volumes model-cache emptyDir", {}),
    Knob("modelCache.type", "ephemeral", "volumes model-cache ephemeral volumeClaimTemplate spec accessModes 0",
         "ReadWriteOnce"),
    Knob("modelCache.existingClaim", "c", "volumes model-cache persistentVolumeClaim claimName", given=PVC),
    Knob("modelCache.existingClaim", "c", "names PersistentVolumeClaim", [], PVC),
    Knob("modelCache.storageClassName", "fast", f"{CLAIM} spec storageClassName", given=PVC),
    Knob("modelCache.type", "pvc", f"{CLAIM} spec accessModes", ["ReadWriteMany"]),
    Knob("modelCache.size", "9Gi", f"{CLAIM} spec resources requests storage", given=PVC),
    Knob("modelCache.hostPath", "/m", "volumes model-cache hostPath path", given=at("modelCache.type", "hostPath")),
    Knob("modelCache.hostPath", "/m", "worker spec initContainers 0 command",
         ["sh", "-c", OWN_CACHE], at("modelCache.type", "hostPath")),
    Knob("modelCache.keep", True, f"{CLAIM} metadata annotations", {"helm.sh/resource-policy": "keep"}, PVC),
    Knob("modelCache.keep", False, f"{CLAIM} metadata annotations", ABSENT, PVC),
    Knob("ray.auth.mode", "disabled", "cluster authOptions", {"mode": "disabled"}),
    Knob("ray.auth.mode", "disabled", "names Secret", []),
    Knob("ray.auth.existingSecret", "s", "cluster authOptions secretName"),
    Knob("ray.auth.existingSecret", "s", "names Secret", []),
    Knob("ray.upgradeStrategy", "None", "service upgradeStrategy type"),
    Knob("ray.clusterDeletionDelaySeconds", 1, "service rayClusterDeletionDelaySeconds"),
    Knob("service.type", "LoadBalancer", "service serveService spec type"),
    Knob("service.annotations", {"a": "b"}, "service serveService metadata annotations"),
    Knob("serviceAccount.create", False, "names ServiceAccount", []),
    Knob("serviceAccount.annotations", {"a": "b"}, "ServiceAccount/-head metadata annotations"),
    Knob("podDisruptionBudget.enabled", True, "PodDisruptionBudget/-b200 spec minAvailable", 2, GROUP),
    Knob("podDisruptionBudget.enabled", False, "names PodDisruptionBudget", [], GROUP),
    Knob("podSecurity.runAsUser", 7, "worker spec securityContext runAsUser"),
    Knob("podSecurity.runAsGroup", 7, "head spec securityContext runAsGroup"),
    Knob("podSecurity.fsGroup", 7, "worker spec securityContext fsGroup"),
    Knob("podSecurity.runAsUser", 1000680000, "worker spec securityContext runAsUser"),
    Knob("podSecurity.runAsGroup", 0, "worker spec securityContext runAsGroup"),
    *(
        Knob(f"podSecurity.{name}", None, f"{pod} securityContext {name}", ABSENT)
        for name in ("runAsUser", "runAsGroup", "fsGroup")
        for pod in ("head spec", "worker spec", "Deployment/-drain spec template spec")
    ),
    *(
        Knob(path, [value], f"{pod} {where}", value)
        for path, value, where in (
            ("initContainers", {"name": "i", "image": "i"}, "spec initContainers 0"),
            ("extraVolumes", {"name": "ca", "configMap": {"name": "ca"}}, "spec volumes 4"),
            ("extraVolumeMounts", {"name": "ca", "mountPath": "/ca"}, "spec containers 0 volumeMounts 4"),
        )
        for pod in ("head", "worker")
    ),
    *(
        Knob(f"probes.{probe}.{name}", 7, f"{pod} {probe}Probe {name}")
        for probe, names in {
            "startup": ("periodSeconds", "failureThreshold"),
            "readiness": ("periodSeconds", "timeoutSeconds", "failureThreshold"),
            "liveness": ("periodSeconds", "timeoutSeconds", "failureThreshold"),
        }.items()
        for name in names
        for pod in ("container", "head spec containers 0")
    ),
    Knob("drain.replacementSeconds", 100, "container lifecycle preStop exec command 4", "700"),
    Knob("drain.replacementSeconds", 100, "worker spec terminationGracePeriodSeconds", 760),
    Knob("drain.replacementSeconds", 100, "Deployment/-drain spec template spec containers 0 args 2", "--patience=100"),
    Knob("drain.timeoutSeconds", 700, "container lifecycle preStop exec command 4", "1600"),
    Knob("drain.timeoutSeconds", 700, "worker spec terminationGracePeriodSeconds", 1660),
    Knob("drain.timeoutSeconds", 700, "Deployment/-drain spec template spec containers 0 args 3", "--finish=700"),
    Knob("drain.shutdownSeconds", 5, "worker spec terminationGracePeriodSeconds", 1505),
    Knob("drain.watcher.enabled", False, "names Deployment ClusterRole ClusterRoleBinding", []),
    Knob("drain.watcher.resources", LIMITS,
         "Deployment/-drain spec template spec containers 0 resources limits memory", "3Gi"),
    Knob("tracing.endpoint", "http://c:4317", "env OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
    Knob("tracing.endpoint", "http://c:4317", "env RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH", TRACE_EXPORTER),
    Knob("tracing.endpoint", "", "env RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH", ABSENT),
    Knob("tracing.protocol", "http/protobuf", "env OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
         given=at("tracing.endpoint", "http://c:4318/v1/traces")),
    Knob("tracing.samplingRatio", 0.5, "env OTEL_TRACES_SAMPLER_ARG", "0.5", TRACED),
    Knob("tests.timeoutSeconds", 7, "Pod/-test spec containers 0 args 1", "7"),
)  # fmt: skip

INCREMENTAL = {"upgradeStrategy": "NewClusterWithIncrementalUpgrade",
               "upgradeOptions": {"gatewayClassName": "g", "stepSizePercent": 10, "intervalSeconds": 30}}  # fmt: skip

STORE = (
    Knob("ray.upgradeStrategy", "None", "service upgradeStrategy type"),
    Knob("ray.upgradeOptions", INCREMENTAL["upgradeOptions"], "service upgradeStrategy clusterUpgradeOptions",
         given={"ray": INCREMENTAL}),
    Knob("ray.upgradeOptions", INCREMENTAL["upgradeOptions"], "service upgradeStrategy clusterUpgradeOptions", ABSENT),
    Knob("gcs.store", "none", GCS, ABSENT),
    Knob("gcs.store", "none", "names StatefulSet", []),
    Knob("gcs.store", "bundled", f"{GCS} redisAddress", f"redis://{FULLNAME}-redis:6379"),
    Knob("gcs.external.address", "rediss://r:1", f"{GCS} redisAddress", given=at("gcs.store", "external")),
    Knob("gcs.external.existingSecret", "s", f"{GCS} redisPassword valueFrom secretKeyRef",
         {"name": "s", "key": "password"}, EXTERNAL),
    Knob("gcs.external.passwordKey", "k", f"{GCS} redisPassword valueFrom secretKeyRef key",
         given=laid_over(EXTERNAL, at("gcs.external.existingSecret", "s"))),
    Knob("gcs.external.username", "u", f"{GCS} redisUsername value", given=EXTERNAL),
    Knob("gcs.bundled.image", "i", f"{REDIS_POD} image"),
    Knob("gcs.bundled.existingSecret", "s", f"{GCS} redisPassword valueFrom secretKeyRef name"),
    Knob("gcs.bundled.existingSecret", "s", f"{REDIS_POD} env 0 valueFrom secretKeyRef name"),
    Knob("gcs.bundled.passwordKey", "k", f"{GCS} redisPassword valueFrom secretKeyRef key",
         given=at("gcs.bundled.existingSecret", "s")),
    Knob("gcs.bundled.passwordKey", "k", f"{REDIS_POD} env 0 valueFrom secretKeyRef key",
         given=at("gcs.bundled.existingSecret", "s")),
    Knob("gcs.bundled.size", "9Gi", f"{REDIS} volumeClaimTemplates 0 spec resources requests storage"),
    Knob("gcs.bundled.storageClassName", "fast", f"{REDIS} volumeClaimTemplates 0 spec storageClassName"),
    Knob("gcs.bundled.resources", LIMITS, f"{REDIS_POD} resources limits memory", "3Gi"),
)  # fmt: skip

NODES = (
    Knob("head.resources", RESOURCES, "head spec containers 0 resources requests", RESOURCES["requests"]),
    Knob("head.resources", {"requests": {"cpu": 1.5}}, "head spec containers 0 resources requests cpu", "1.5"),
    Knob("head.resources", None, "head spec containers 0 resources", {}),
    Knob("head.sharedMemory", "3Gi", "head spec volumes 0 emptyDir sizeLimit"),
    Knob("head.nodeSelector", {"a": "b"}, "head spec nodeSelector"),
    Knob("head.tolerations", TOLERATIONS, "head spec tolerations"),
    Knob("head.affinity", AFFINITY, "head spec affinity"),
    Knob("head.labels", {"a": "b"}, "head metadata labels a", "b"),
    Knob("head.labels", {"a": "b"}, "head metadata labels a", "b", at("commonLabels", {"a": "c"})),
    Knob("head.annotations", {"a": "b"}, "head metadata annotations"),
    Knob("head.priorityClassName", "p", "head spec priorityClassName"),
    Knob("workerGroups", {"other": {}}, "cluster workerGroupSpecs 1 groupName", "other"),
    Knob("autoscaling.enabled", True, "cluster enableInTreeAutoscaling"),
    Knob("autoscaling.enabled", True, "head spec automountServiceAccountToken"),
    Knob("autoscaling.idleTimeoutSeconds", 7, "cluster autoscalerOptions idleTimeoutSeconds", given=SCALED),
    Knob("autoscaling.resources", LIMITS, "cluster autoscalerOptions resources limits memory", "3Gi", SCALED),
    *(
        Knob(f"workerGroupDefaults.{name}", *rest)
        for name, *rest in (
            ("minReplicas", 3, "group replicas", 3, at("workerGroupDefaults.maxReplicas", 3)),
            ("maxReplicas", 3, "group maxReplicas", 3, SCALED),
            ("gpus", 4, "container resources limits nvidia.com/gpu"),
            ("gpus", 4, "group rayStartParams num-gpus", "4"),
            ("acceleratorType", "H200", "group rayStartParams resources", r'"{\"accelerator_type:H200\": 1}"',
             at("models.small.deployment.resources.accelerator_type", "H200")),
            ("gpuResource", "example.com/gpu", "container resources requests example.com/gpu", 1),
            ("cpus", 7, "container resources requests cpu", "7"),
            ("cpus", "1.5", "container resources limits cpu"),
            ("enabled", False, "group groupName", "other", at("workerGroups.other.enabled", True)),
            ("ephemeralStorage", "9Gi", "container resources limits ephemeral-storage"),
            ("cpuRequest", "700m", "container resources requests cpu"),
            ("cpuRequest", 0.5, "container resources requests cpu", "0.5"),
            *(
                ("cpus", cpus, "group rayStartParams num-cpus", counted)
                for cpus, counted in ((7, "7"), (2.5, "3"), ("2500m", "3"), ("2", "2"), ("16000m", "16"))
            ),
            ("memory", "3Gi", "container resources limits memory"),
            ("sharedMemory", "3Gi", "volumes shared-mem emptyDir sizeLimit"),
            ("nodeSelector", {"a": "b"}, "worker spec nodeSelector a", "b"),
            ("tolerations", TOLERATIONS, "worker spec tolerations"),
            ("affinity", AFFINITY, "worker spec affinity"),
            ("topologyKey", "zone", "worker spec topologySpreadConstraints 0 topologyKey"),
            ("topologyKey", "", "worker spec topologySpreadConstraints", ABSENT),
            ("labels", {"a": "b"}, "worker metadata labels a", "b"),
            ("labels", {"a": "b"}, "head metadata labels a", ABSENT),
            ("annotations", {"a": "b"}, "worker metadata annotations"),
            ("env", {"A": "1"}, "env A", "1"),
            ("priorityClassName", "p", "worker spec priorityClassName"),
            ("runtimeClassName", "nvidia", "worker spec runtimeClassName"),
            ("rdmaDevices", 2, "container resources limits rdma/hca_shared_devices_a"),
            ("rdmaDevices", 2, "container securityContext capabilities add", ["IPC_LOCK"]),
            ("rdmaResource", "rdma/x", "container resources requests rdma/x", 1,
             at("workerGroupDefaults.rdmaDevices", 1)),
        )
    ),
)  # fmt: skip

ACCESS = (
    Knob("ingress.enabled", True, "names Ingress", [FULLNAME]),
    Knob("ingress.className", "nginx", "Ingress/ spec ingressClassName", given=INGRESS),
    Knob("ingress.host", "h.example", f"{INGRESS_RULE} host", given=INGRESS),
    Knob("ingress.host", "", f"{INGRESS_RULE} host", ABSENT, INGRESS),
    Knob("ingress.host", None, f"{INGRESS_RULE} host", ABSENT, INGRESS),
    Knob("ingress.tlsSecret", "s", "Ingress/ spec tls 0 secretName", given=INGRESS),
    Knob("ingress.annotations", {"a": "b"}, "Ingress/ metadata annotations", given=INGRESS),
    Knob("gatewayRoute.enabled", True, "names HTTPRoute", [FULLNAME], at("gatewayRoute.gateway.name", "g")),
    Knob("gatewayRoute.gateway.name", "other", "HTTPRoute/ spec parentRefs 0 name", given=ROUTE),
    Knob("gatewayRoute.gateway.namespace", "n", "HTTPRoute/ spec parentRefs 0 namespace", given=ROUTE),
    Knob("gatewayRoute.gateway.sectionName", "s", "HTTPRoute/ spec parentRefs 0 sectionName", given=ROUTE),
    Knob("gatewayRoute.hostnames", ["h"], "HTTPRoute/ spec hostnames", given=ROUTE),
    Knob("gatewayRoute.timeout", "7s", "HTTPRoute/ spec rules 0 timeouts request", given=ROUTE),
    Knob("networkPolicy.enabled", False, "names NetworkPolicy", []),
    Knob("networkPolicy.operatorNamespace", "ray-system",
         "NetworkPolicy/-head spec ingress 0 from 0 namespaceSelector matchLabels kubernetes.io/metadata.name"),
    Knob("networkPolicy.clients", PEERS, "NetworkPolicy/-ray spec ingress 1 from 0", PEERS[0]),
    Knob("networkPolicy.monitoring", PEERS, "NetworkPolicy/-ray spec ingress 2 from"),
    Knob("networkPolicy.dnsPorts", [54], "NetworkPolicy/-dns spec egress 0 ports",
         [{"port": 54, "protocol": "UDP"}, {"port": 54, "protocol": "TCP"}]),
    Knob("networkPolicy.dnsPorts", [], "NetworkPolicy/-dns spec egress", []),
    Knob("networkPolicy.downloadPorts", [], "NetworkPolicy/-ray spec egress",
         [{"to": [{"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "demo",
                                                   "app.kubernetes.io/part-of": "peagle"},
                                   "matchExpressions": [{"key": "app.kubernetes.io/component", "operator": "In",
                                                         "values": ["head", "worker"]}]}}]}]),
    Knob("networkPolicy.downloadPorts", [3128], "NetworkPolicy/-ray spec egress 1 ports",
         [{"port": 3128, "protocol": "TCP"}]),
    Knob("networkPolicy.download", PEERS, "NetworkPolicy/-ray spec egress 1 to"),
    Knob("networkPolicy.control", PEERS, "NetworkPolicy/-drain spec egress 1 to"),
    Knob("networkPolicy.control", PEERS, "NetworkPolicy/-head spec egress 1 to", given=SCALED),
    Knob("networkPolicy.collector", PEERS, "NetworkPolicy/-ray spec egress 2 to", given=TRACED),
    Knob("networkPolicy.collector", [], "NetworkPolicy/-ray spec egress 2 to", ABSENT, TRACED),
    Knob("tracing.endpoint", "https://[fd00::1]:4317", "NetworkPolicy/-ray spec egress 2 ports 0 port", 4317),
    Knob("monitoring.podMonitors.enabled", True, "names PodMonitor", [f"{FULLNAME}-head", f"{FULLNAME}-worker"]),
    Knob("monitoring.podMonitors.interval", "7s", "PodMonitor/-worker spec podMetricsEndpoints 0 interval",
         given=MONITORS),
    Knob("monitoring.podMonitors.labels", {"a": "b"}, "PodMonitor/-head metadata labels a", "b", MONITORS),
    Knob("monitoring.alerts.enabled", True, "PrometheusRule/-alerts spec groups 0 name", "peagle.serving"),
    Knob("monitoring.alerts.labels", {"a": "b"}, "PrometheusRule/-alerts metadata labels a", "b", ALERTS),
    *(
        Knob("monitoring.alerts.runbookBaseUrl", base,
             "PrometheusRule/-alerts spec groups 0 rules 0 annotations runbook_url", f"{begins}{RUNBOOK}", ALERTS)
        for base, begins in (("", ""), ("https://git.example/x", "https://git.example/x/"), ("http://a/", "http://a/"))
    ),
    Knob("monitoring.dashboards.enabled", True, "names ConfigMap", [f"{FULLNAME}-dashboard-{name}" for name in BOARDS]),
    Knob("monitoring.dashboards.labels", {"a": "b"}, "ConfigMap/-dashboard-router metadata labels a", "b",
         DASHBOARDS),
)  # fmt: skip

KNOBS = (*GENERAL, *STORE, *NODES, *ACCESS)
# Read by Helm itself, as the condition of a dependency, and by that dependency.
READ_BY_HELM = {"kuberay-operator.enabled", "kuberay-operator.env"}


def seen(it: Rendered, where: str) -> Any:
    """What stands at `where`, or ABSENT."""
    root, *keys = where.split()
    if root == "names":
        return [found["metadata"]["name"] for kind in keys for found in it.all(kind)]
    if "/" in root:
        kind, _, suffix = root.partition("/")
        value: Any = it.one(kind, FULLNAME + suffix)
    elif root == "volumes":
        value = {entry["name"]: entry for entry in it.worker["spec"]["volumes"]}
    else:
        value = getattr(it, root)
    for key in keys:
        if isinstance(value, list):
            value = value[int(key)]
        elif key in value:
            value = value[key]
        else:
            return ABSENT
    return value


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: f"{knob.path}-{knob.where.split()[-1]}")
def test_a_value_shows_where_an_operator_expects_it(knob: Knob) -> None:
    rendered = render(laid_over(MINIMAL, laid_over(knob.given, at(knob.path, knob.value))))
    assert seen(rendered, knob.where) == (knob.value if knob.shows is SAME else knob.shows)


def test_every_value_has_a_test() -> None:
    assert set(value_paths(schema())) - READ_BY_HELM == {knob.path for knob in KNOBS}


def resolves(path: str) -> bool:
    """Whether the schema knows `path`, a value that a template reads."""
    node: Mapping[str, Any] = schema()
    for key in path.split("."):
        while "$ref" in node:
            target: Any = schema()
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            node = target
        if key not in node.get("properties", {}):
            return False
        node = node["properties"][key]
    return True


def test_every_value_that_a_template_reads_is_in_the_schema() -> None:
    read = {
        path
        for template in [*(CHART / "templates").rglob("*.tpl"), *(CHART / "templates").rglob("*.yaml")]
        for path in re.findall(r"\.Values\.([A-Za-z][\w.]*\w)", template.read_text(encoding="utf-8"))
    }
    assert len(read) > 50
    assert {path for path in read if not resolves(path)} == set()


def test_the_chart_traces_as_peagle_serve_does() -> None:
    url = "http://collector:4318/v1/traces"
    settings = {"endpoint": url, "protocol": "http/protobuf", "samplingRatio": 0.25}
    traced, plain = render(laid_over(MINIMAL, {"tracing": settings})), render(MINIMAL)
    assert dict(traced.env.items() - plain.env.items()) == environment(url, 0.25, {})


def test_the_test_s_pod_goes_where_the_head_goes() -> None:
    placed = {"nodeSelector": {"kubernetes.io/arch": "amd64"}, "tolerations": TOLERATIONS}
    pod = render(laid_over(MINIMAL, {"head": placed})).one("Pod", f"{FULLNAME}-test")["spec"]
    assert {name: pod[name] for name in placed} == placed


def test_a_token_from_a_secret_stands_once() -> None:
    both = {"env": {"HF_TOKEN": "hf_x", "HF_HOME": "/models"}, "huggingFace": {"existingSecret": "s"}}
    spec = render(laid_over(MINIMAL, both)).cluster["workerGroupSpecs"][0]["template"]["spec"]
    names = [each["name"] for each in spec["containers"][0]["env"]]
    assert len(names) == len(set(names))
    (token,) = [each for each in spec["containers"][0]["env"] if each["name"] == "HF_TOKEN"]
    assert token["valueFrom"]["secretKeyRef"]["name"] == "s"
