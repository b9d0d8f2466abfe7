"""Null unsets a value, which is the same as empty, or refused by name for required values."""

import re
from collections.abc import Mapping
from functools import reduce
from typing import Any

import pytest
import yaml
from helm_python import HelmRenderError

from support.kubernetes.rendered_chart import CHART, MINIMAL, at, laid_over, ready_values, render, schema, value_paths

# Everything that only shows behind a switch.
FULL = laid_over(
    MINIMAL,
    {
        "ingress": {"enabled": True},
        "autoscaling": {"enabled": True},
        "modelCache": {"type": "pvc"},
        "monitoring": {"podMonitors": {"enabled": True}, "alerts": {"enabled": True}},
        "models": {"small": {"deployment": {"resources": {"accelerator_type": None}}}},
    },
)
# These say what is served; without them nothing is, which has refusals of its own.
SERVED = {"models", "workerGroups", "workerGroupDefaults.enabled"}
PATHS = [path for path in value_paths(schema()) if path not in SERVED and not path.startswith("kuberay-operator.")]
REQUIRED = yaml.safe_load((CHART / "files" / "required.yaml").read_text(encoding="utf-8"))
# Maps that are not empty by default.
DEFAULT_MAPS = {
    "autoscaling.resources",
    "drain.watcher.resources",
    "gcs.bundled.resources",
    "head.resources",
    "monitoring.dashboards.labels",
    "workerGroupDefaults.nodeSelector",
}
GROUP = "workerGroupDefaults"
EMPTY: Mapping[str, Any] = {"string": "", "boolean": False, "array": [], "object": {}}


def empty(path: str) -> Any:
    """What the schema takes as empty at `path`; None where only null is."""
    node = schema()
    for key in path.split("."):
        node = node["properties"][key]
    kinds = node.get("type", "object")
    return next((EMPTY[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in EMPTY), None)


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """What is rendered, without the token, which is another each time."""
    return {path: re.sub(r"auth_token: .*", "", text) for path, text in render(values).texts.items()}


@pytest.mark.parametrize("path", sorted(REQUIRED))
def test_what_has_to_be_something_is_refused_by_name_without(path: str) -> None:
    with pytest.raises(HelmRenderError) as refused:
        render(laid_over(FULL, at(path, None)))
    assert f"{path} is unset, but a value such as {REQUIRED[path]} is required" in str(refused.value)


@pytest.mark.parametrize("path", sorted(set(PATHS) - set(REQUIRED)))
def test_null_is_as_empty_elsewhere(path: str) -> None:
    unset = texts(laid_over(FULL, at(path, None)))
    assert not [line for text in unset.values() for line in text.splitlines() if "nil>" in line]
    # Helm adds the default's fields to an empty map, and takes them away for null.
    if path not in DEFAULT_MAPS:
        assert unset == texts(laid_over(FULL, at(path, empty(path))))


def test_null_takes_a_default_map_away() -> None:
    unset = render(laid_over(FULL, reduce(laid_over, (at(path, None) for path in DEFAULT_MAPS))))
    assert "nodeSelector" not in unset.worker["spec"]
    for container in (unset.head["spec"]["containers"][0], unset.cluster["autoscalerOptions"]):
        assert container["resources"] == {}


@pytest.mark.parametrize("name", ["nodeSelector", "tolerations", "acceleratorType", "topologyKey", "annotations"])
def test_a_group_unsets_what_all_groups_have(name: str) -> None:
    values = [laid_over(FULL, at(f"workerGroups.b200.{name}", value)) for value in (None, empty(f"{GROUP}.{name}"))]
    assert texts(values[0]) == texts(values[1])


def test_a_group_on_any_node_is_one_with_null() -> None:
    values = laid_over(
        ready_values("gpt-oss-20b"), at("workerGroups.b200", {"nodeSelector": None, "tolerations": None})
    )
    assert {"nodeSelector", "tolerations"} & set(render(values).worker["spec"]) == set()


def test_all_that_is_unset_is_said_at_once() -> None:
    with pytest.raises(HelmRenderError) as refused:
        render(laid_over(MINIMAL, {"gcs": {"store": None}, "probes": None}))
    for path in ("gcs.store", "probes.startup.periodSeconds", "probes.liveness.timeoutSeconds"):
        assert f"{path} is unset" in str(refused.value)
