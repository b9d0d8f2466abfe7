"""Fifteen common clusters: what each asks of the chart, and, pinned, what it changes of the render without it.

Each file of `clusters/` is the part of the values that such a cluster needs; the file next to it shows what changes.
`PEAGLE_UPDATE_SNAPSHOTS=1 make helm-test` rewrites those.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from peagle.cluster.preflight.values import parse_values
from support.kubernetes.chart_schemas import CUSTOM, KUBERNETES, WITHOUT_SCHEMA, validator_of
from support.kubernetes.rendered_chart import CHART, FULLNAME, MINIMAL, Rendered, laid_over, render

CLUSTERS = {path.stem: path for path in sorted((Path(__file__).parent / "clusters").glob("*.yaml"))}
# These are as long as what they hold, which has tests of its own.
LONG_KINDS = {"ConfigMap", "PrometheusRule"}
MAX_LINES = 40


@cache
def base_of(name: str) -> Mapping[str, Any]:
    """What the cluster's values are laid over: the embedded model, or a model on a B200."""
    return {} if CLUSTERS[name].read_text(encoding="utf-8").startswith("# base: defaults") else MINIMAL


def values_of(name: str) -> dict[str, Any]:
    return laid_over(base_of(name), yaml.safe_load(CLUSTERS[name].read_text(encoding="utf-8")))


def key_of(path: str, index: int, item: Mapping[str, Any]) -> str:
    """How an item of a list is called: by what Kubernetes tells it from the others, containers by their place."""
    if path.endswith("ontainers"):
        return f"[{index}]"
    return f"[{next((item[key] for key in ('name', 'groupName') if key in item), index)}]"


def flat(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield path and value of every leaf."""
    if isinstance(node, Mapping) and node:
        for key, child in node.items():
            yield from flat(child, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list) and node and all(isinstance(item, Mapping) for item in node):
        for index, item in enumerate(node):
            yield from flat(item, path + key_of(path, index, item))
    else:
        yield path, json.dumps(node)


def parts(rendered: Rendered) -> dict[str, dict[str, str]]:
    """Every leaf of every object, with those of pods apart under their own name."""
    found = {name: dict(flat(pod)) for name, pod in rendered.pods()}
    for each in rendered.objects:
        name = f"{each['kind']}/{each['metadata']['name'].removeprefix(FULLNAME)}"
        if each["kind"] in LONG_KINDS:
            found[name] = dict(flat(of_long(each)))
        elif each["kind"] == "RayService":
            spec = dict(each["spec"], serveConfigV2=rendered.serve)
            cluster = dict(spec.pop("rayClusterConfig"))
            head, workers = cluster.pop("headGroupSpec"), cluster.pop("workerGroupSpecs")
            found[name] = dict(flat({**each, "spec": spec}))
            found["cluster"] = dict(flat({**cluster, "head": without_pod(head), "": [*map(without_pod, workers)]}))
        elif each["kind"] not in ("Pod", "Secret"):
            found[name] = dict(flat({**each, "spec": without_pod(each.get("spec", {}))}))
    return found


def of_long(item: Mapping[str, Any]) -> dict[str, Any]:
    """Labels, and where the first alert leads to."""
    found = {"metadata": item["metadata"]}
    alerts = (rule for group in item.get("spec", {}).get("groups", ()) for rule in group["rules"] if "alert" in rule)
    for alert in islice(alerts, 1):
        found["first alert"] = {"runbook_url": alert["annotations"]["runbook_url"]}
    return found


def without_pod(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "template"}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What is another, new or gone."""
    lines = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old != new:
            lines.append(f"{path} = {new}" if new is not None else f"{path} is gone (was {old})")
    return lines


# What every object has, and what follows from the list that it stands in.
COMMON = re.compile(r"^(apiVersion|kind|metadata\.name|metadata\.namespace) |(app\.kubernetes\.io/|helm\.sh/chart)")
OWN_NAME = re.compile(r'\[(.*)\]\.(name|groupName) = "\1"$')
# Of a group that is new: where it goes, and what it asks for.
OF_NEW_WORKER = ("spec.nodeSelector", "spec.tolerations", "spec.containers[0].resources.requests")


def difference(name: str) -> str:
    """What the cluster's values change, a line for each fact; parts that change alike share theirs."""
    before, after = parts(render(base_of(name))), parts(render(values_of(name)))
    facts: dict[str, list[str]] = {}
    for part in sorted({*before, *after}):
        if part not in after:
            facts.setdefault("is gone", []).append(part)
            continue
        told = changes(before.get(part, {}), after[part])
        if part not in before and part.startswith("worker "):
            told = [line for line in told if line.startswith(OF_NEW_WORKER)]
        for line in told:
            if not COMMON.search(line) and not OWN_NAME.search(line):
                facts.setdefault(line, []).append(part)
    rows = sorted((", ".join(where), line) for line, where in facts.items())
    return "".join(f"{where}: {line}\n" for where, line in rows)


def test_there_are_fifteen() -> None:
    assert len(CLUSTERS) == 15


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_cluster_changes_what_was_reviewed(name: str) -> None:
    text = difference(name)
    assert 0 < len(text.splitlines()) <= MAX_LINES
    path = CLUSTERS[name].with_suffix(".txt")
    if os.environ.get("PEAGLE_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "look at the difference; PEAGLE_UPDATE_SNAPSHOTS=1 accepts it"


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_object_of_a_cluster_is_one_that_kubernetes_takes(name: str) -> None:
    rendered = render(values_of(name))
    for found in rendered.objects:
        if found["kind"] not in CUSTOM | WITHOUT_SCHEMA:
            kubernetes_validate.validate(found, KUBERNETES[-1], strict=True)
    for pod_name, template in rendered.pods():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod_name}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_custom_object_of_a_cluster_fits_its_definition(name: str) -> None:
    for found in render(values_of(name)).objects:
        if found["kind"] in CUSTOM:
            validator_of(found["apiVersion"], found["kind"]).validate(found)


@pytest.mark.parametrize("name", CLUSTERS)
def test_preflight_reads_the_values_of_a_cluster(name: str) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    if not base_of(name):
        defaults |= yaml.safe_load((CHART / "values" / "embedded-cpu.yaml").read_text(encoding="utf-8"))
    assert parse_values(laid_over(defaults, values_of(name)), name).groups
