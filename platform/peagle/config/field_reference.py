"""Write the table of every field of a deployment file into `deployments/README.md`: `make fields`."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle.config.deployment import ACCELERATOR_TYPES, PLATFORM_OWNED_ARGUMENTS, Deployment

BEGIN, END = "<!-- Written by `make fields`. Do not edit. -->", "<!-- End of what `make fields` writes. -->"
Schema = Mapping[str, Any]
_KINDS = {"string": "text", "boolean": "true or false", "object": "fields"}
_NUMBERS = {"integer": "whole number", "number": "number"}


def fields(schema: Schema, definitions: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Yield path, schema and whether it is required of every field that holds a value."""
    for name, field in schema["properties"].items():
        own, required = f"{path}.{name}".lstrip("."), name in schema.get("required", ())
        section = _section(field, definitions)
        if section is None:
            yield own, field, required
        else:
            yield from fields(section, definitions, own)


def _section(field: Schema, definitions: Schema) -> Schema | None:
    """Return the schema of the section that a field is; None for a value."""
    for part in (field, *field.get("anyOf", ())):
        if "$ref" in part:
            section: Schema = definitions[part["$ref"].rpartition("/")[2]]
            return section
    return None


def values_of(field: Schema) -> str:
    """Say in words what a field takes."""
    kind = next((part for part in field.get("anyOf", ()) if part["type"] != "null"), field)
    if "enum" in kind:
        return " or ".join(f"`{value}`" for value in kind["enum"])
    if (number := _NUMBERS.get(kind["type"])) is None:
        return _KINDS[kind["type"]]
    low = f"above {kind['exclusiveMinimum']:g}" if "exclusiveMinimum" in kind else f"{kind['minimum']:g}"
    return f"{number}, {low} to {kind['maximum']:,.15g}"


def reference() -> str:
    """Return the generated part of the page, as Markdown."""
    schema = Deployment.model_json_schema()
    rows = []
    for path, field, required in fields(schema, schema["$defs"]):
        default = "required" if required else "" if field.get("default") is None else json.dumps(field["default"])
        text = " ".join(field["description"].split())
        rows.append(f"| `{path}` | {values_of(field)} | {default} | {text} |")
    owned = (f"- `{name}`: {by}" for name, by in sorted(PLATFORM_OWNED_ARGUMENTS.items()))
    return "\n".join(
        (
            *("| field | takes | default | meaning |", "| --- | --- | --- | --- |", *rows, ""),
            *("Arguments that `engine` refuses, and the field that sets each:", "", *owned, ""),
            f"Names for `resources.accelerator_type`: {', '.join(ACCELERATOR_TYPES)}.",
        )
    )


def written_into(page: str) -> str:
    """Return `page` with the part between its two marks replaced. Raises ValueError where a mark is missing."""
    before, after = page.index(BEGIN) + len(BEGIN), page.index(END)
    return f"{page[:before]}\n\n{reference()}\n\n{page[after:]}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_text(written_into(target.read_text(encoding="utf-8")), encoding="utf-8")
