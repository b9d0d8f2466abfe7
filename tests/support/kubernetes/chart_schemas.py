"""What an API server accepts: versions of Kubernetes' own objects, and the available schemas of custom ones."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from support.paths import REPOSITORY

KUBERNETES = ("1.29", "1.34", kubernetes_validate.latest_version())
CRDS = Path(os.environ.get("PEAGLE_CRDS", REPOSITORY.parent / "shared" / "crds"))
CUSTOM = {"RayService", "PodMonitor", "PrometheusRule"}
# The Gateway API's schemas are not available; the knobs' tests check the fields of its only object.
WITHOUT_SCHEMA = {"HTTPRoute"}
# It reads all definitions of a Kubernetes version again for each object.
kubernetes_validate.utils.schema_contents = cache(kubernetes_validate.utils.schema_contents)


def strict(node: Any) -> Any:
    """Return a structural schema that refuses fields that an API server would silently drop."""
    if isinstance(node, list):
        return [strict(child) for child in node]
    if not isinstance(node, dict):
        return node
    tightened = {key: strict(child) for key, child in node.items()}
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        tightened.setdefault("additionalProperties", False)
    return tightened


def crd_schema(api_version: str, kind: str) -> dict[str, Any]:
    group, _, version = api_version.partition("/")
    path = CRDS / f"{group}_{kind.lower()}s.yaml"
    if not path.is_file():
        pytest.skip(f"no {path.name} in {CRDS}; PEAGLE_CRDS names the folder with the CRDs of KubeRay and Prometheus")
    crd = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    (found,) = [entry for entry in crd["spec"]["versions"] if entry["name"] == version]
    return {**strict(found["schema"]["openAPIV3Schema"]), "additionalProperties": False}


@cache
def validator_of(api_version: str, kind: str) -> jsonschema.Draft202012Validator:
    """Return the validator of a custom kind; skips the test if its definition is not available."""
    return jsonschema.Draft202012Validator(crd_schema(api_version, kind))
