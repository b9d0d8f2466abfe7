"""What the modules of the package import of each other, read from their source."""

import ast
from collections.abc import Iterator
from pathlib import Path

from support.paths import REPOSITORY

PACKAGE = REPOSITORY / "platform" / "peagle"
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


_NAMES = {name_of(path) for path in MODULES}


def imports(path: Path) -> Iterator[str]:
    """Yield every name that the module at `path` imports, with its module's in front, inside functions too."""
    here = [*path.relative_to(PACKAGE.parent).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
