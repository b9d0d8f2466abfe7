"""A cluster that meets a release's requirements, and the checks of `peagle cluster preflight` on it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from peagle.cluster.preflight.facts import gather
from peagle.cluster.preflight.outcome import Check, Outcome
from peagle.cluster.preflight.release_checks import RAYSERVICE_FIELDS, TOKEN_FIELD, check_all
from peagle.cluster.preflight.values import Values, parse_values
from support.kubernetes.kubernetes_api import KubernetesApi, client_of

MODEL = {
    "name": "m",
    "target": {"source": "org/m"},
    "speculation": {"enabled": False},
    "replicas": {"min": 8, "max": 8},
    "resources": {"accelerator": "gpu", "accelerator_type": "B200", "cpus": 8.0},
}
# Labels of a node's driver, as GPU feature discovery sets them.
DRIVER = {"nvidia.com/cuda.driver-version.major": "580", "nvidia.com/cuda.driver.major": "580"}
RAW: dict[str, Any] = {
    "models": {"m": {"deployment": MODEL}, "off": {"enabled": False, "deployment": {"name": 3}}},
    "workerGroupDefaults": {
        "minReplicas": 1,
        "maxReplicas": 1,
        "acceleratorType": "B200",
        "cpus": 16,
        "memory": "128Gi",
        "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-B200"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    },
    "workerGroups": {"b200": {"gpus": 4, "minReplicas": 2, "maxReplicas": 2}},
    "head": {"resources": {"requests": {"cpu": "2", "memory": "8Gi"}}},
    "huggingFace": {"existingSecret": "hf"},
    "modelCache": {"type": "pvc", "storageClassName": "fast"},
    "gcs": {"store": "none"},
}


def values(**changes: Any) -> Values:
    return parse_values({**RAW, **changes}, "values.yaml", minimum_kubernetes=">=1.29.0-0")


def schema_of(paths: tuple[str, ...]) -> dict[str, Any]:
    """Return a schema with these dotted paths."""
    root: dict[str, Any] = {"properties": {}}
    for path in paths:
        level = root
        for part in path.split("."):
            level = level["properties"].setdefault(part, {"properties": {}})
    return root


def crd(name: str, fields: tuple[str, ...] = (*RAYSERVICE_FIELDS, TOKEN_FIELD)) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"properties": {"spec": schema_of(fields)}}}
    return {"metadata": {"name": name}, "spec": {"versions": [{"name": "v1", "served": True, "schema": schema}]}}


def gpu_node(
    name: str, product: str = "NVIDIA-B200", gpus: int = 8, driver: Mapping[str, str] = DRIVER
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, **driver}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def operator(namespace: str, release: str, image: str = "kuberay/operator:v1.7.0") -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "kuberay-operator", "app.kubernetes.io/instance": release}
    spec = {"template": {"spec": {"containers": [{"image": image}]}}}
    return {"metadata": {"name": "op", "namespace": namespace, "labels": labels}, "spec": spec}


@asynccontextmanager
async def ready_cluster() -> AsyncIterator[KubernetesApi]:
    """Fill a cluster with everything that `RAW` needs."""
    async with KubernetesApi(replies={"/version": {"gitVersion": "v1.33.2"}}) as serving:
        for kind in ("rayservices", "rayclusters"):
            await serving.put("customresourcedefinitions", crd(f"{kind}.ray.io"))
        await serving.put("deployments", operator("kuberay", "kuberay"))
        await serving.put("namespaces", {"metadata": {"name": "serving", "labels": {}}})
        await serving.put("storageclasses", {"metadata": {"name": "fast"}})
        await serving.put(
            "secrets", {"metadata": {"name": "hf", "namespace": "serving"}, "data": {"token": "c2VjcmV0"}}
        )
        await serving.put("nodes", gpu_node("gpu-1"))
        cpu_status = {
            "allocatable": {"cpu": "8", "memory": "32Gi"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await serving.put("nodes", {"metadata": {"name": "cpu-1"}, "spec": {}, "status": cpu_status})
        yield serving


async def checks(server: KubernetesApi, wanted: Values | None = None, scale_up: bool = False) -> list[Check]:
    wanted = wanted or values()
    async with client_of(server) as api:
        return check_all(wanted, await gather(api, wanted, "r"), scale_up)


async def only(server: KubernetesApi, wanted: Values | None = None, scale_up: bool = False) -> Check:
    """Return the only check that does not pass."""
    (found,) = [check for check in await checks(server, wanted, scale_up) if check.outcome is not Outcome.PASS]
    return found
