"""Helm values of a release: the chart's defaults, overridden by the operator's files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from kubernetes.utils.quantity import parse_quantity
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from peagle.api.api_settings import read_settings
from peagle.config import Deployment, parse_deployment
from peagle.config.yaml_file import read_mapping
from peagle.errors import CombinedConfigError, ConfigError

EMBEDDED = Path("values/embedded-cpu.yaml")
"""Values that the chart uses if both `models` and `workerGroups` are empty."""


class _Part(BaseModel):
    """A part of the values. Fields that `peagle cluster` does not use are checked by the chart only."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)


class Secret(_Part):
    existing_secret: str = ""


class HuggingFace(Secret):
    token_key: str = "token"


class ApiKeys(Secret):
    key: str = "keys"


class Image(_Part):
    pull_secrets: tuple[str, ...] = ()


class ModelCache(_Part):
    type: str = "none"
    existing_claim: str = ""
    storage_class_name: str = ""


class Store(Secret):
    password_key: str = "password"
    storage_class_name: str = ""


class Gcs(_Part):
    store: str = "none"
    external: Store = Store()
    bundled: Store = Store()


def _amount(value: str | float) -> str | float:
    try:
        parse_quantity(value)  # type: ignore[no-untyped-call]
    except ValueError:
        raise ValueError("it is not a Kubernetes quantity, such as 500m or 8Gi") from None
    return value


Amount = Annotated[str | float, AfterValidator(_amount)]


class Requests(_Part):
    cpu: Amount = 0
    memory: Amount = 0


class ResourceNeeds(_Part):
    requests: Requests = Requests()


class Head(_Part):
    resources: ResourceNeeds = ResourceNeeds()
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    priority_class_name: str = ""


class WorkerGroup(_Part):
    """One worker group. Each pod requests `memory` and, unless `cpu_request` is set, `cpus`."""

    min_replicas: int = 1
    max_replicas: int = 1
    gpus: int = 0
    accelerator_type: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    cpus: Amount = 1
    cpu_request: Amount | Literal[""] = ""
    memory: Amount = 0
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    priority_class_name: str = ""
    runtime_class_name: str = ""
    rdma_devices: int = 0
    rdma_resource: str = ""


class Switch(_Part):
    enabled: bool = False


class Monitoring(_Part):
    pod_monitors: Switch = Switch()
    alerts: Switch = Switch()


class Drain(_Part):
    watcher: Switch = Switch()


class NetworkPolicy(Switch):
    operator_namespace: str = ""


class Auth(_Part):
    mode: str = "disabled"
    existing_secret: str = ""


class Ray(_Part):
    auth: Auth = Auth()
    upgrade_strategy: str = "NewCluster"


class Values(_Part):
    """All values that `peagle cluster` uses."""

    deployments: tuple[Deployment, ...]
    groups: dict[str, WorkerGroup]
    minimum_kubernetes: str
    huggingface: HuggingFace = Field(default=HuggingFace(), alias="huggingFace")
    api_keys: ApiKeys = ApiKeys()
    image: Image = Image()
    model_cache: ModelCache = ModelCache()
    gcs: Gcs = Gcs()
    head: Head = Head()
    autoscaling: Switch = Switch()
    monitoring: Monitoring = Monitoring()
    gateway_route: Switch = Switch()
    drain: Drain = Drain()
    ray: Ray = Ray()
    env_from_secrets: tuple[str, ...] = ()
    network_policy: NetworkPolicy = NetworkPolicy()
    operator: Switch = Field(default=Switch(), alias="kuberay-operator")


def load_values(chart: Path, files: Sequence[Path]) -> Values:
    """Read the chart's default values and merge `files` into them, in order, as Helm does.

    Raises ConfigError if a file is missing or is not YAML, or a field is invalid.
    """
    if not (chart / "Chart.yaml").is_file():
        raise ConfigError("--chart", str(chart), "there is no chart", "Name the folder helm/peagle of this project.")
    merged: Mapping[str, Any] = read_mapping(chart / "values.yaml")
    for path in files:
        merged = _laid_over(merged, read_mapping(path, "helm/peagle/values/"))
    if not merged.get("models") and not merged.get("workerGroups"):
        merged = _laid_over(merged, read_mapping(chart / EMBEDDED))
    origin = ", ".join(map(str, files)) or str(chart / "values.yaml")
    version = str(read_mapping(chart / "Chart.yaml").get("kubeVersion", ""))
    return parse_values(merged, origin, minimum_kubernetes=version)


def parse_values(raw: Mapping[str, Any], origin: str, minimum_kubernetes: str = "") -> Values:
    """Validate merged values; `minimum_kubernetes` is a chart's `kubeVersion`.

    Raises ConfigError if a field is invalid, or no model is enabled.
    """
    models = _mapping(raw, "models", origin)
    deployments = tuple(
        parse_deployment(_mapping(model, "deployment", f"{origin}: models.{key}"), f"{origin}: models.{key}.deployment")
        for key, model in models.items()
        if isinstance(model, Mapping) and model.get("enabled", True)
    )
    if not deployments:
        fix = "Pass a file of helm/peagle/values/ with -f, or write one."
        raise ConfigError(f"{origin}: models", None, "no model is enabled", fix)
    defaults = _mapping(raw, "workerGroupDefaults", origin)
    given = _mapping(raw, "workerGroups", origin)
    groups = {name: {**defaults, **_mapping(given, name, f"{origin}: workerGroups")} for name in given}
    # Null unsets the default of a group's field.
    groups = {name: {key: value for key, value in group.items() if value is not None} for name, group in groups.items()}
    groups = {name: group for name, group in groups.items() if group.get("enabled", True)}
    parts = {"deployments": deployments, "groups": groups, "minimum_kubernetes": minimum_kubernetes}
    read_settings(_mapping(raw, "api", origin), f"{origin}: api")
    try:
        return Values.model_validate({**raw, **parts})
    except ValidationError as error:
        problems = [
            ConfigError(
                f"{origin}: " + ".".join(map(str, details["loc"])).replace("groups.", "workerGroups.", 1),
                details["input"],
                details["msg"].lower(),
                "Correct it; helm lint shows details.",
            )
            for details in error.errors()
        ]
        raise CombinedConfigError.of(problems) from None


def _mapping(raw: Mapping[str, Any], key: str, origin: str) -> dict[str, Any]:
    value = raw.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{origin}: {key}", value, "it must be a map", "Write fields under it.")
    return dict(value)


def _laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: maps merge, null removes, any other value replaces."""
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = _laid_over(merged[key], value)
        else:
            merged[key] = value
    return merged
