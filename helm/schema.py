"""Writes the chart's files derived from `values.yaml` and the package: `values.schema.json`, and facts in `files/`.

The schema of a value follows from its default and a comment line `# @schema {...}` above it; its description
is the rest of that comment. A value with an ambiguous default (an empty list or map) must have such a line.

Run `make helm-schema`; a test fails if the written files are not current.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from peagle.api.api_settings import ApiSettings
from peagle.config import ACCELERATOR_TYPES, PLATFORM_OWNED_ARGUMENTS, ROUTING_POLICIES, VARIABLE_NAME, Deployment

CHART = Path(__file__).parent / "peagle"
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
MARK = "@schema "
OPERATOR = "kuberay-operator"

QUANTITIES = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
MODEL = {
    "type": "object",
    "additionalProperties": False,
    "required": ["deployment"],
    "properties": {
        "enabled": {"type": "boolean", "default": True},
        "deployment": {"$ref": "#/$defs/Deployment"},
    },
}


class UndescribedValueError(Exception):
    """A value of values.yaml whose default does not determine its schema."""

    def __init__(self, path: str) -> None:
        super().__init__(f"values.yaml: {path}: its default is empty. Add a line `# @schema {{...}}` above it.")


def comment_above(lines: list[str], line: int) -> list[str]:
    """Return the comment directly above `line` (from 0), without indent and comment marks."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return [text.lstrip()[1:].removeprefix(" ") for text in lines[first:line]]


def schema_of(node: yaml.Node, lines: list[str], path: str) -> dict[str, Any]:
    """Return the schema of a value with the default `node`."""
    value = yaml.safe_load(yaml.serialize(node))
    if isinstance(node, yaml.MappingNode):
        if not node.value:
            raise UndescribedValueError(path)
        return {"type": "object", "additionalProperties": False, "properties": dict(properties(node, lines, path))}
    if type(value) not in TYPES:
        raise UndescribedValueError(path)
    return {"type": TYPES[type(value)], "default": value}


def properties(node: yaml.MappingNode, lines: list[str], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and schema of every value of a mapping."""
    for key, child in node.value:
        own = f"{path}.{key.value}".lstrip(".")
        comment = comment_above(lines, key.start_mark.line)
        narrowed = [yaml.safe_load(text.removeprefix(MARK)) for text in comment if text.startswith(MARK)]
        description = re.sub(r"\s+", " ", " ".join(text for text in comment if not text.startswith(MARK))).strip()
        yield (
            own.rpartition(".")[2],
            {
                **({"description": description} if description else {}),
                **described(child, lines, own, narrowed[0] if narrowed else None),
            },
        )


def described(child: yaml.Node, lines: list[str], path: str, narrowed: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the schema of a value, with its comment's constraints."""
    if narrowed is None:
        return schema_of(child, lines, path)
    if "$ref" in narrowed:
        return dict(narrowed)
    if isinstance(child, yaml.ScalarNode) or (isinstance(child, yaml.MappingNode) and "properties" in narrowed):
        return {**schema_of(child, lines, path), **narrowed}
    kind = {"type": "array" if isinstance(child, yaml.SequenceNode) else "object"}
    if isinstance(child, yaml.MappingNode) and narrowed == {"additionalProperties": True}:
        return {**schema_of(child, lines, path), **narrowed}
    return {**kind, **narrowed}


def nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also accepts null, which unsets the field."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*kinds, *(["null"] if "null" not in kinds else [])]}


def required(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and default of every required value: numbers, and texts with a non-empty default."""
    for name, child in schema["properties"].items():
        own = f"{path}.{name}".lstrip(".")
        if "properties" in child and own != OPERATOR:
            yield from required(child, own)
        elif (
            type(default := child.get("default")) is not bool
            and default not in (None, "")
            and "null" not in child["type"]
        ):
            yield own, default


def definitions() -> dict[str, Any]:
    """Return the schemas that values.yaml refers to: the package's models, and Kubernetes types."""
    found: dict[str, Any] = {}
    for model in (Deployment, ApiSettings):
        schema = model.model_json_schema(ref_template="#/$defs/{model}")
        found |= schema.pop("$defs", {})
        found[model.__name__] = schema
    # Pydantic's name for this model is used by the type below.
    found["DeploymentResources"] = found.pop("Resources")
    found["Deployment"]["properties"]["resources"] = {"$ref": "#/$defs/DeploymentResources"}
    # Rules of the models' validators, which pydantic does not export.
    found["Deployment"]["properties"]["environment"]["propertyNames"] = {"pattern": f"^{VARIABLE_NAME.pattern}$"}
    found["DeploymentResources"]["properties"]["accelerator_type"]["enum"] = [*ACCELERATOR_TYPES, None]
    found["Routing"]["properties"]["policy"]["enum"] = [*ROUTING_POLICIES]
    found["ApiSettings"]["properties"]["cors_origins"]["items"]["pattern"] = r"^(\*|https?://[^/]+)$"
    return found | {
        "Model": MODEL,
        "Resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"requests": QUANTITIES, "limits": QUANTITIES},
        },
    }


def values_schema(text: str) -> dict[str, Any]:
    """Return the JSON schema of the values file `text`."""
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    found = dict(properties(root, text.splitlines()))
    # Helm removes nulls from the chart's own values, but passes on a null within a group.
    group = found["workerGroupDefaults"]
    needed = dict(required(group))
    group["properties"] |= {name: nullable(field) for name, field in group["properties"].items() if name not in needed}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {**found, "global": {"type": "object"}},
        "$defs": definitions(),
    }


def deployment_facts() -> dict[str, Any]:
    """Return facts about deployments for templates: defaults of sections, and arguments that must not be set."""
    bare = Deployment.model_validate({"name": "x", "target": {"source": "x"}, "speculation": {"enabled": False}})
    sections = ("speculation", "replicas", "resources", "routing")
    defaults = {name: type(getattr(bare, name))().model_dump() for name in sections}
    return {"defaults": {**defaults, "engine": {}}, "ownedArguments": dict(PLATFORM_OWNED_ARGUMENTS)}


def generated() -> dict[Path, str]:
    """Return every derived file with its text."""
    values = (CHART / "values.yaml").read_text(encoding="utf-8")
    schema = values_schema(values)
    note = "# Written by `make helm-schema`. Do not edit.\n"
    return {
        CHART / "values.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        CHART / "files" / "deployment.yaml": note + yaml.safe_dump(deployment_facts(), width=120),
        CHART / "files" / "required.yaml": note + yaml.safe_dump(dict(required(schema)), width=120),
    }


def main() -> None:
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(CHART.parent.parent)}: written", file=sys.stderr)


if __name__ == "__main__":
    main()
