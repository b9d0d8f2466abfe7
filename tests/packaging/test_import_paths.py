"""Every dotted path in a string resolves, and is declared in one module."""

import ast
import re
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from peagle import import_paths
from support.imports import MODULES, PACKAGE, parsed
from support.paths import REPOSITORY

TEMPLATES = REPOSITORY / "helm" / "peagle" / "templates"
PATHS = [
    *(value for name, value in vars(import_paths).items() if name.isupper() and isinstance(value, str)),
    *import_paths.COMMAND_GROUPS.values(),
]
# The others name what installs each seam; tests/unit/test_upstream.py resolves their rows.
HOLDERS = {"import_paths.py", "patch_table.py", "ray_seams.py"}
# A module of peagle by its dotted name, and what is in it.
_DOTTED = re.compile(r"\bpeagle(?:\.[a-z_]+)+(?:[.:][A-Za-z_]+)?")


def names_a_module(text: str) -> bool:
    return (PACKAGE.parent / text.partition(":")[0].replace(".", "/")).with_suffix(".py").exists() or (
        PACKAGE.parent / text.rpartition(".")[0].replace(".", "/")
    ).with_suffix(".py").exists()


@pytest.mark.parametrize("path", PATHS)
def test_a_path_leads_to_something(path: str) -> None:
    pytest.importorskip("vllm")
    module, _, name = path.partition(":")
    try:
        found = import_module(module)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        found = import_module(module)
    assert not name or hasattr(found, name)


def test_entry_points_lead_to_something() -> None:
    ours = [each for each in entry_points(group="console_scripts") if each.value.startswith("peagle.")]
    assert ours
    assert all(callable(each.load()) for each in ours)


def test_no_other_module_has_such_a_path_in_a_string() -> None:
    found = {}
    for path in MODULES:
        if path.name in HOLDERS:
            continue
        nodes = ast.walk(parsed(path))
        strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        if hits := [text for text in strings if _DOTTED.fullmatch(text) and names_a_module(text)]:
            found[str(path.relative_to(PACKAGE))] = hits
    assert not found


def test_the_chart_names_no_other() -> None:
    named = {
        match
        for path in TEMPLATES.rglob("*")
        if path.is_file()
        for match in _DOTTED.findall(path.read_text(encoding="utf-8"))
        if names_a_module(match)
    }
    assert named
    assert named <= set(PATHS)


def test_the_scan_knows_a_path_when_it_sees_one() -> None:
    assert names_a_module("peagle.api.edge.middlewares")
    assert names_a_module("peagle.serve.app:build_app")
    assert not names_a_module("peagle.dispatch.reason")
    assert Path(PACKAGE / "import_paths.py").exists()
