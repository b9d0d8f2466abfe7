"""The tables of what is replaced or private upstream: complete, and true of the installed vLLM and Ray."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from peagle.engine.patches.patch_table import PATCHES
from peagle.serve.ray_seams import RAY_SEAMS
from peagle.upstream import NONE_FILED, Kind, Seam, is_read_for
from support.imports import MODULES, parsed

SEAMS = (*PATCHES, *RAY_SEAMS)
NAMED = {seam.name for seam in SEAMS}
SYMBOLS = {seam.symbol.replace(":", ".") for seam in SEAMS}
LIBRARIES = ("ray", "vllm", "torch")
# Underscored names that their libraries document.
DOCUMENTED = {"_replace", "_fields", "_exit"}
# What `abc` and `typing` write into every class.
WRITTEN = {"_abc_impl", "_is_protocol"}
ROOMS_WITH_SUBCLASSES = ("peagle.serve", "peagle.api", "peagle.engine")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in full:
            parts = name.split(".")
            if parts[0] in LIBRARIES and (any(map(is_private, parts)) or "generated" in parts):
                yield name


def attributes(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Private attributes that a module reads, and those that it makes."""
    read: set[str] = set()
    made: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=context):
                (read if isinstance(context, ast.Load) else made).add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                made.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                made.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), value=None):
                read.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr"), args=[_, ast.Constant(str(name)), *_]):
                read.add(name)
    return set(filter(is_private, read)), set(filter(is_private, made))


def owner_of(seam: Seam) -> object:
    module, _, path = seam.symbol.partition(":")
    return pkgutil.resolve_name(f"{module}:{path.rpartition('.')[0]}")


def sets(owner: object, name: str) -> bool:
    """Whether a class, or one above it, gives its instances an attribute of this name."""
    assert isinstance(owner, type)
    sources = [inspect.getsource(each) for each in owner.__mro__ if each.__module__.split(".")[0] in LIBRARIES]
    return any(f"self.{name}" in source or f"    {name}:" in source for source in sources)


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.symbol)
def test_each_symbol_is_there_in_what_is_installed(seam: Seam) -> None:
    pytest.importorskip("vllm")
    if seam.kind is Kind.ADDS:
        assert isinstance(owner_of(seam), type), seam
        return
    try:
        seam.find()
    except AttributeError:
        assert sets(owner_of(seam), seam.name), f"gone: {seam}"


@pytest.mark.parametrize(("library", "seams"), [("vllm", PATCHES), ("ray", RAY_SEAMS)])
def test_the_installed_releases_are_among_those_read(library: str, seams: tuple[Seam, ...]) -> None:
    version = pytest.importorskip(library).__version__
    assert [seam.symbol for seam in seams if not is_read_for(version, seam.versions)] == []


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.symbol)
def test_each_row_says_all_that_an_upgrade_asks(seam: Seam) -> None:
    assert seam.why.endswith(".")
    assert seam.removed_when
    assert not seam.removed_when.endswith(".")
    assert seam.issue == NONE_FILED or seam.issue.startswith("https://github.com/")
    assert bool(seam.installed_by) == (seam.process is not None) == (seam.kind in {Kind.REPLACES, Kind.ADDS})


@pytest.mark.parametrize("seam", [seam for seam in SEAMS if seam.installed_by], ids=lambda seam: seam.symbol)
def test_what_changes_a_symbol_is_there(seam: Seam) -> None:
    pytest.importorskip("vllm")
    assert callable(pkgutil.resolve_name(seam.installed_by))


def test_no_symbol_has_two_rows() -> None:
    assert len(SYMBOLS) == len(SEAMS)


def test_every_private_import_is_a_row() -> None:
    found = {name: path for path in MODULES for name in private_imports(parsed(path))}
    assert found
    assert {name: path for name, path in found.items() if name not in SYMBOLS} == {}


def test_every_private_attribute_that_is_not_made_here_is_a_row() -> None:
    of_modules = {path: attributes(parsed(path)) for path in MODULES}
    made = set().union(*(made for _, made in of_modules.values())) | DOCUMENTED
    foreign = {(path, name) for path, (read, _) in of_modules.items() for name in read - made}
    assert foreign
    assert {(path, name) for path, name in foreign if name not in NAMED} == set()


def test_every_private_method_of_vllm_or_ray_that_is_overridden_is_a_row() -> None:
    pytest.importorskip("vllm")
    overridden = set()
    for room in ROOMS_WITH_SUBCLASSES:
        package = importlib.import_module(room)
        for found in pkgutil.walk_packages(package.__path__, f"{room}."):
            for cls in vars(importlib.import_module(found.name)).values():
                if isinstance(cls, type) and cls.__module__.startswith("peagle."):
                    above = [each for each in cls.__mro__ if each.__module__.split(".")[0] in LIBRARIES]
                    for name in filter(is_private, vars(cls)):
                        overridden |= {(cls.__qualname__, name) for each in above if name in vars(each)}
    assert overridden
    assert {(cls, name) for cls, name in overridden if name not in NAMED | WRITTEN} == set()


def test_importing_changes_nothing_and_one_call_for_each_process_changes_every_row() -> None:
    pytest.importorskip("vllm")
    code = """
import importlib, pkgutil
from peagle.engine.patches.patch_table import PATCHES, install_patches
from peagle.upstream import Kind, Process
import peagle.engine

rows = [seam for seam in PATCHES if seam.kind is Kind.REPLACES]
before = {seam.symbol: seam.find() for seam in rows}
for found in pkgutil.walk_packages(peagle.engine.__path__, "peagle.engine."):
    importlib.import_module(found.name)
assert [seam.symbol for seam in rows if seam.find() is not before[seam.symbol]] == [], "changed by an import"
called = set()
for process in Process:
    install_patches(process)
    called.add(process)
    done = {seam.symbol for seam in rows if seam.find() is not before[seam.symbol]}
    expected = {seam.symbol for seam in rows if seam.process in called}
    assert done == expected, (process, done ^ expected)
once = {seam.symbol: seam.find() for seam in PATCHES if seam.process}
for process in Process:
    install_patches(process)
assert [symbol for symbol in once if pkgutil.resolve_name(symbol) is not once[symbol]] == [], "changed again"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
