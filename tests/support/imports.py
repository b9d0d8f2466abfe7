"""Imports and private names of modules, read from their source."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.paths import REPOSITORY

PACKAGE = REPOSITORY / "platform" / "peagle"
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


_NAMES = {name_of(path) for path in MODULES}


def imports(path: Path) -> Iterator[str]:
    """Yield every name that the module at `path` imports, with its module's in front, inside functions too."""
    here = [*path.relative_to(PACKAGE.parent).parts[:-1]]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that the one at `path` imports, by their dotted names."""
    found = set()
    for name in imports(path):
        while name and name not in _NAMES:
            name = name.rpartition(".")[0]
        if name and name != "peagle":
            found.add(name)
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _own(node: ast.expr) -> bool:
    """Whether `node` is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def private_names(tree: ast.Module) -> set[str]:
    """Private names that a module defines: its functions, classes, constants and attributes."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(value=value, attr=name, ctx=ast.Store()) if _own(value):
                found.add(name)
    return set(filter(is_private, found))


def private_uses(tree: ast.Module) -> set[str]:
    """Private names of others that a module imports, reads, calls or replaces."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names):
                found |= {alias.name for alias in names}
            case ast.Attribute(value=value, attr=name) if not _own(value):
                found.add(name)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr") | ast.Attribute(attr="setattr" | "delattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                found.add(name)
            # As `monkeypatch.setattr` takes them.
            case ast.Constant(value=str(text)) if text.startswith("peagle.") and " " not in text:
                found.add(text.rpartition(".")[2])
    return set(filter(is_private, found))
