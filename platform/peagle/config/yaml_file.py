"""Reads a YAML file that a person wrote, strictly: what YAML would quietly guess or expand is refused."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from peagle.errors import ConfigError

# Far above any deployment file, far below what could exhaust the parser.
MAX_BYTES = 256 * 1024
MAX_DEPTH = 32


def read_mapping(path: Path, examples: str = "deployments/") -> dict[Any, Any]:
    """Read the one mapping that the file at `path` holds; `examples` is the folder that has such files.

    Raises ConfigError where there is no such file, it is not YAML, or it holds something else than one mapping.
    """
    return parse_mapping(_read_text(path, examples), str(path), examples)


def parse_mapping(text: str, path: str, examples: str = "deployments/") -> dict[Any, Any]:
    """Return the one mapping that `text`, read from `path`, holds; raise what `read_mapping` does."""
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except _Refused as error:
        raise ConfigError(f"{path}, line {error.line}", None, error.problem, error.fix) from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = f"it is not YAML: {error.problem or error.context}"
        raise ConfigError(f"{path}{line}", None, problem, "Correct that line.") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(path, None, f"it is not YAML: {reason}", "Correct that place.") from None
    except (KeyError, IndexError, AttributeError):  # of what makes a value of a tag's kind
        problem = "a value is not of the kind that the tag before it names"
        raise ConfigError(path, None, problem, "Leave out tags such as !!int.") from None
    if not isinstance(value, dict):
        problem = "it is empty" if value is None else f"it holds a {type(value).__name__}, not fields"
        raise ConfigError(path, None, problem, f"Start from a file of {examples}.")
    return value


def lines_of(text: str, *place: str | int) -> list[int]:
    """The lines on which the entries of the list or mapping at `place` begin, for a text that `parse_mapping` takes."""
    node = yaml.compose(text, Loader=_StrictLoader)
    for part in place:
        node = _entry(node, part)
    entries: Sequence[Any] = node.value if isinstance(node, yaml.CollectionNode) else ()
    return [(entry[0] if isinstance(entry, tuple) else entry).start_mark.line + 1 for entry in entries]


def _entry(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        entry: yaml.Node = node.value[part]
        return entry
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    return None


def _read_text(path: Path, examples: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(str(path), None, "there is no such file", f"Name a file of {examples}.") from None
    except IsADirectoryError:
        raise ConfigError(str(path), None, "it is a folder", "Name a file in it.") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(str(path), None, f"it cannot be read: {reason}", "Name a readable file.") from None
    if len(content) > MAX_BYTES:
        raise ConfigError(str(path), None, f"it is larger than {MAX_BYTES} bytes", "Name a smaller file.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), None, f"byte {error.start} is not UTF-8", "Save it as UTF-8.") from None


class _Refused(Exception):  # noqa: N818 - not an error of YAML's: this file's own rule
    def __init__(self, place: yaml.Node | yaml.Event, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.line = place.start_mark.line + 1 if place.start_mark else 1
        self.problem, self.fix = problem, fix


class _StrictLoader(yaml.SafeLoader):
    """YAML's plain values only: no key twice, no alias (`*x`, which can expand without bound), no deep nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(event, f"the alias *{event.anchor} is not allowed here", "Write the value out.")
        if self._depth == MAX_DEPTH:
            raise _Refused(event, f"it is nested more than {MAX_DEPTH} levels deep", "Flatten it.")
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen:
                raise _Refused(key, f"{key.value} stands there twice", "Keep one of them.")
            seen.add(name)
        return super().construct_mapping(node, deep)


# Some libraries read timestamps otherwise, and change it for all of their process. The stubs want one class alone.
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_StrictLoader.add_constructor(_TIMESTAMP, yaml.SafeLoader.construct_yaml_timestamp)  # type: ignore[type-var]
