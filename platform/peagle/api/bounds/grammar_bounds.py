"""Size limits of a request's grammars, counted over plain values before an engine compiles them.

An engine compiles in threads that all its requests share, and a compilation cannot be stopped: one that takes minutes
must not start. Counting takes time proportional to the size of the body, whatever it describes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from peagle.api.api_settings import GrammarSettings
from peagle.api.bounds.field_path import Path, spell
from peagle.api.bounds.json_text import is_nested_deeper
from peagle.api.bounds.pattern_size import optional_parts, pattern_sizes
from peagle.errors import RequestError

CODE = "grammar_too_large"

# JSON Schema's keywords by the type of their value. Schemas under other names are found too, because a `$ref` may point
# there. A property named like a keyword has a schema as its value, which is not a number, text or list.
_PROPERTIES = ("properties", "patternProperties")
_BRANCHES = ("anyOf", "oneOf", "allOf", "prefixItems", "tags", "elements", "structures", "triggers")
_COUNTS = (
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
_PATTERNS = ("pattern", "regex")
# Fields of a structural tag that hold a separate schema, whose `$ref`s start at its own root.
_SCHEMAS = ("schema", "json_schema")


def check_grammars(data: Mapping[str, Any], bounds: GrammarSettings) -> None:
    """Refuse a request whose grammars exceed `bounds`; values of wrong types are left to the engine.

    Raises RequestError if a grammar exceeds them; `param` names the field as the client wrote it.
    """
    budget = _Budget(bounds)
    for path, wanted in _formats(data):
        budget.schema(wanted, path)
        budget.expand_all(wanted, path)
    if isinstance(outputs := data.get("structured_outputs"), dict):
        _check_outputs(budget, outputs)
    for path, parameters in _parameters(data.get("tools"), ("tools",)):
        budget.schema(parameters, path)
        budget.expand(parameters, path)


def _formats(data: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the fields that constrain the output format, of a chat, a response and a message."""
    for path in (("response_format",), ("text", "format"), ("output_config", "format")):
        node: Any = data
        for name in path:
            node = node.get(name) if isinstance(node, dict) else None
        if isinstance(node, dict):
            yield path, node


def _parameters(tools: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the schema of each tool's arguments, of a chat, a response (whose tools may be grouped) and a message."""
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict):
            continue
        place = (*path, index)
        if isinstance(function := tool.get("function"), dict):
            yield (*place, "function", "parameters"), function.get("parameters")
        yield (*place, "parameters"), tool.get("parameters")
        yield (*place, "input_schema"), tool.get("input_schema")
        if path == ("tools",):
            yield from _parameters(tool.get("tools"), (*place, "tools"))


def _check_outputs(budget: "_Budget", outputs: Mapping[str, Any]) -> None:
    for name, value in outputs.items():
        path: Path = ("structured_outputs", name)
        match name, value:
            case "json" | "structural_tag", str() | dict():
                tree = budget.parsed(value, path) if isinstance(value, str) else value
                budget.schema(tree, path)
                if name == "json":
                    budget.expand(tree, path)
                else:
                    budget.expand_all(tree, path)
            case "choice", list():
                budget.choices(value, path)
            case "regex" | "whitespace_pattern", str():
                budget.pattern(value, path)
            case "grammar", str():
                budget.grammar(value, path)


@dataclass(slots=True)
class _Budget:
    """Running totals of a request's grammars."""

    bounds: GrammarSettings
    spent: dict[str, int] = field(default_factory=dict)

    def _spend(self, limit: str, amount: int, noun: str, path: Path) -> None:
        self.spent[limit] = total = self.spent.get(limit, 0) + amount
        _check(total, getattr(self.bounds, limit), f"{noun} of the request's grammars", path)

    def schema(self, root: Any, path: Path) -> None:
        """Count the contents of a schema or a structural tag, without expanding references."""
        level: list[tuple[Any, Path]] = [(root, path)]
        for _ in range(self.bounds.max_depth + 1):
            children: list[tuple[Any, Path]] = []
            for node, place in level:
                if isinstance(node, dict):
                    self._keywords(node, place)
                    texts = [*node, *node.values()]
                else:
                    texts = node if isinstance(node, list) else [node]
                chars = sum(len(text) if isinstance(text, str) else 1 for text in texts)
                self._spend("max_chars", chars, "characters", place)
                children += ((value, (*place, key)) for key, value in _children(node))
            if not children:
                return
            level = children
        raise _beyond(self.bounds.max_depth + 1, self.bounds.max_depth, "levels of nesting", level[0][1])

    def _keywords(self, node: Mapping[str, Any], place: Path) -> None:
        for name, value in node.items():
            path = (*place, name)
            if name == "enum" and isinstance(value, list):
                self.choices(value, path)
            elif name in _BRANCHES and isinstance(value, list):
                self._spend("max_choices", len(value), "choices", path)
            elif name in _PROPERTIES and isinstance(value, dict):
                self._properties(node, value, path)
            elif name in _COUNTS and isinstance(value, int | float):
                _check(value, self.bounds.max_repetitions, "repetitions", path)
            elif name in _PATTERNS and isinstance(value, str):
                self.pattern(value, path)
            elif name == "grammar" and isinstance(value, str):
                self.grammar(value, path)
            elif name == "const":
                self.choices([value], path)

    def _properties(self, node: Mapping[str, Any], properties: Mapping[str, Any], path: Path) -> None:
        self._spend("max_properties", len(properties), "properties", path)
        required = node.get("required")
        names = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        optional = len(properties.keys() - names)
        _check(optional, self.bounds.max_optional_properties, "optional properties", path)
        if path[-1] == "patternProperties":
            for pattern in properties:
                self.pattern(pattern, (*path, pattern))

    def choices(self, values: list[Any], path: Path) -> None:
        """Count the values of a choice."""
        self._spend("max_choices", len(values), "choices", path)
        chars = sum(len(value) if isinstance(value, str) else 1 for value in values)
        self._spend("max_choice_chars", chars, "characters in choices", path)

    def pattern(self, text: str, path: Path) -> None:
        """Measure a regular expression."""
        _check(len(text), self.bounds.max_pattern_chars, "characters of a pattern", path)
        self._spend("max_optional_pairs", optional_parts(text) ** 2, "pairs of optional parts", path)
        self._size(text, path)

    def grammar(self, text: str, path: Path) -> None:
        """Measure a grammar in EBNF or Lark notation."""
        _check(len(text), self.bounds.max_grammar_chars, "characters of a grammar", path)
        bare = _UNCOUNTED.sub('""', text)
        self._spend("max_choices", bare.count("|"), "choices", path)
        self._size(bare, path)

    def _size(self, text: str, path: Path) -> None:
        for found, most, noun in pattern_sizes(text, self.bounds):
            _check(found, most, noun, path)

    def parsed(self, text: str, path: Path) -> Any:
        """Parse a JSON text; the engine refuses text that is not JSON."""
        _check(len(text), self.bounds.max_chars, "characters of the request's grammars", path)
        if is_nested_deeper(text, self.bounds.max_depth):
            raise _beyond(self.bounds.max_depth + 1, self.bounds.max_depth, "levels of nesting", path)
        try:
            return json.loads(text)
        except ValueError:
            return None

    def expand(self, root: Any, path: Path) -> None:
        """Measure a schema with each `$ref` expanded."""
        _Expansion(root, self.bounds).measure(root, path, 0)

    def expand_all(self, tag: Any, path: Path) -> None:
        """Measure each schema in a structural tag or a response format."""
        open_values: list[tuple[Any, Path]] = [(tag, path)]
        while open_values:
            node, place = open_values.pop()
            for key, value in _children(node):
                if key in _SCHEMAS and "schema" not in value:
                    self.expand(value, (*place, key))
                else:
                    open_values.append((value, (*place, key)))


def _children(node: Any) -> Iterator[tuple[str | int, Any]]:
    """Yield the arrays and objects in an array or an object, each with its key or index."""
    items = node.items() if isinstance(node, dict) else enumerate(node if isinstance(node, list) else ())
    return ((key, value) for key, value in items if isinstance(value, dict | list))


# Literals and comments: their contents are not syntax.
_UNCOUNTED = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"|(?:#|//)[^\n]*')


class _Expansion:
    """Size and depth of a schema with its references followed; each value is measured once."""

    def __init__(self, root: Any, bounds: GrammarSettings) -> None:
        self._root, self._bounds = root, bounds
        # Parts and levels of arrays and objects, by identity; None while a value is being measured.
        self._measured: dict[int, tuple[int, int] | None] = {}

    def measure(self, node: Any, path: Path, depth: int) -> tuple[int, int]:
        """Return a value's parts and levels; it is at level `depth`."""
        if not isinstance(node, dict | list):
            return 0, 0
        if id(node) not in self._measured:
            _check(depth, self._bounds.max_reference_depth, "levels of nesting, each $ref followed", path)
            self._measured[id(node)] = None
            self._measured[id(node)] = self._sum(node, path, depth)
        # A recursive reference is not followed again and adds nothing.
        return self._measured[id(node)] or (1, 0)

    def _sum(self, node: Any, path: Path, depth: int) -> tuple[int, int]:
        parts, levels = 1, 0
        inner = list(_children(node))
        if isinstance(node, dict) and isinstance(reference := node.get("$ref"), str):
            inner.append(("$ref", _resolve(self._root, reference)))
        for key, value in inner:
            more, below = self.measure(value, (*path, key), depth + 1)
            parts, levels = parts + more, max(levels, below + 1)
            _check(parts, self._bounds.max_expanded, "parts, each $ref followed", (*path, key))
            found = depth + levels
            _check(found, self._bounds.max_reference_depth, "levels of nesting, each $ref followed", (*path, key))
        return parts, levels


def _resolve(root: Any, reference: str) -> Any:
    """Return the target of a JSON pointer such as `#/$defs/a`; None for any other reference."""
    node = root
    for part in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else ():
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal() and len(name) < 9 and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict):
            node = node.get(name)
        else:
            return None
    return node if reference.startswith("#") else None


def _check(found: float, most: int, noun: str, path: Path) -> None:
    if found > most:
        raise _beyond(found, most, noun, path)


def _beyond(found: float, most: int, noun: str, path: Path) -> RequestError:
    param = spell(path)
    return RequestError(f"{param}: {found} {noun}; at most {most} are allowed here.", param=param, code=CODE)
