"""Renders the Helm chart with Helm's own library, and finds objects in the result."""

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import yaml
from helm_python import Chart

from support.paths import REPOSITORY

CHART = REPOSITORY / "helm" / "peagle"
READY = {path.stem: path for path in sorted((CHART / "values").glob("*.yaml"))}
# Eight times as fast as PyYAML's own, if libyaml is installed.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
RELEASE, NAMESPACE, FULLNAME = "demo", "serving", "demo-peagle"

# A custom model, and the chart settings that its release needs.
MINIMAL: Mapping[str, Any] = {
    "models": {
        "small": {
            "deployment": {
                "name": "small",
                "target": {"source": "org/target"},
                "drafter": {"source": "org/head", "trained_depth": 8},
                "resources": {"accelerator_type": "B200"},
            }
        }
    },
    "workerGroups": {"b200": {}},
    "gcs": {"store": "bundled"},
}


@cache
def chart() -> Chart:
    return Chart.load(CHART)


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return found


def value_paths(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of every value in values.yaml, from the schema `node`."""
    for name, child in node.get("properties", {}).items():
        own = f"{path}.{name}".lstrip(".")
        if "properties" in child:
            yield from value_paths(child, own)
        elif own != "global":
            yield own


def ready_values(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(READY[name].read_text(encoding="utf-8"))
    return values


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` merged in, map by map, as Helm merges value files."""
    merged = copy.deepcopy(dict(base))
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = laid_over(merged[key], value) if both else copy.deepcopy(value)
    return merged


def at(path: str, value: Any) -> dict[str, Any]:
    """Return values in which `path` (`a.b.c`) is `value`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@dataclass(frozen=True)
class Rendered:
    """The objects rendered from one set of values."""

    texts: Mapping[str, str]

    @cached_property
    def objects(self) -> list[dict[str, Any]]:
        texts = [text for path, text in self.texts.items() if not path.endswith("NOTES.txt")]
        return [found for text in texts for found in yaml.load_all(text, LOADER) if found]

    @property
    def notes(self) -> str:
        return next(text for path, text in self.texts.items() if path.endswith("NOTES.txt"))

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [found for found in self.objects if found["kind"] == kind]

    def one(self, kind: str, name: str = FULLNAME) -> dict[str, Any]:
        (found,) = [found for found in self.all(kind) if found["metadata"]["name"] == name]
        return found

    @property
    def service(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.one("RayService")["spec"]
        return spec

    @property
    def cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any] = self.service["rayClusterConfig"]
        return cluster

    @property
    def serve(self) -> dict[str, Any]:
        """The Serve configuration."""
        config: dict[str, Any] = yaml.load(self.service["serveConfigV2"], LOADER)
        return config

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the application builder."""
        (application,) = self.serve["applications"]
        arguments: dict[str, Any] = application["args"]
        return arguments

    @property
    def head(self) -> dict[str, Any]:
        template: dict[str, Any] = self.cluster["headGroupSpec"]["template"]
        return template

    @property
    def group(self) -> dict[str, Any]:
        """The first worker group."""
        group: dict[str, Any] = self.cluster["workerGroupSpecs"][0]
        return group

    @property
    def worker(self) -> dict[str, Any]:
        template: dict[str, Any] = self.group["template"]
        return template

    @property
    def container(self) -> dict[str, Any]:
        """Ray's container in the first worker group."""
        container: dict[str, Any] = self.worker["spec"]["containers"][0]
        return container

    @property
    def env(self) -> dict[str, Any]:
        return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in self.container["env"]}

    def policy(self, suffix: str) -> dict[str, Any]:
        spec: dict[str, Any] = self.one("NetworkPolicy", f"{FULLNAME}-{suffix}")["spec"]
        return spec

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and template of every pod of the release."""
        yield "head", self.head
        for group in self.cluster["workerGroupSpecs"]:
            yield f"worker {group['groupName']}", group["template"]
        for kind in ("Deployment", "StatefulSet", "Job"):
            for found in self.all(kind):
                yield found["metadata"]["name"], found["spec"]["template"]
        for pod in self.all("Pod"):
            yield pod["metadata"]["name"], pod


def render(values: Mapping[str, Any], **changes: Any) -> Rendered:
    """Render the chart with `values`, with `changes` merged into them."""
    return Rendered(chart().render(laid_over(values, changes), name=RELEASE, namespace=NAMESPACE))
