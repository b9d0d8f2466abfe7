"""The house rules that a reader relies on: what lies where, what may import what, and how long things may be."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import REPOSITORY

ROOT = REPOSITORY
PACKAGE = ROOT / "platform" / "peagle"
MODULES = sorted(PACKAGE.rglob("*.py"))
SOURCES = sorted([*MODULES, *(ROOT / "tests").rglob("*.py")])

ROOT_FOLDERS = {"platform", "deployments", "helm", "dashboards", "tests"}
ROOT_FILES = {"pyproject.toml", "README.md", "Makefile", "CHANGELOG.md", "LICENSE"}

MAX_FUNCTION_LINES = 70
MAX_MODULE_LINES = 400

# What stands on what, from the top: a module imports from its own room or from those below it.
LAYERS = (
    ("peagle.cli",),
    ("peagle.observe",),
    ("peagle.bench",),
    ("peagle.simulator",),
    ("peagle.serve",),
    ("peagle.drafter",),
    ("peagle.cluster",),
    ("peagle.engine",),
    ("peagle.api",),
    ("peagle.client", "peagle.config", "peagle.host"),
    ("peagle.router",),
    ("peagle.errors", "peagle.metrics", "peagle.tracing", "peagle.prompt_file", "peagle.upstream"),
)
HEAVY = {"ray", "vllm", "torch", "kubernetes", "transformers"}


def id_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tracked_files() -> list[Path]:
    """Every file that git would publish, whether or not it is committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("this is no git checkout")
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_the_root_holds_only_what_a_reader_expects() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in tracked_files()}
    assert {name for name in top if not name.startswith(".")} <= ROOT_FOLDERS | ROOT_FILES


def test_every_test_module_has_a_name_of_its_own() -> None:
    """pytest imports them by their bare names: of two alike it can collect but one, and stops."""
    names = Counter(path.name for path in SOURCES if path.name.startswith("test_"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_python_file_of_ours_can_shadow_the_standard_library_s_platform() -> None:
    assert list((ROOT / "platform").glob("*.py")) == []


@pytest.mark.parametrize("path", MODULES, ids=id_of)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name != "__init__.py" or text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{id_of(path)} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=id_of)
def test_modules_and_functions_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_MODULE_LINES
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {
        node.name: length for node in functions if (length := node.end_lineno - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert not long


def imports(path: Path) -> Iterator[str]:
    """Every module of this project that the one at `path` imports, inside functions too."""
    here = [*path.relative_to(PACKAGE.parent).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> int | None:
    """The layer that `module`, or the package it lies in, stands in; None for `peagle` itself and what is in none."""
    under = {name: index for index, names in enumerate(LAYERS) for name in names}
    while module and module not in under:
        module = module.rpartition(".")[0]
    return under.get(module)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", MODULES, ids=id_of)
def test_imports_never_go_up(path: Path) -> None:
    name = name_of(path)
    own = layer_of(name)
    assert own is not None or name == "peagle", f"add {name} to LAYERS"
    up = {module for module in imports(path) if (layer := layer_of(module)) is not None and layer < (own or 0)}
    assert not up, f"{name} imports from a layer above its own"


@pytest.mark.parametrize("package", ["peagle.router", "peagle.config", "peagle.engine.checks", "peagle.cli"])
def test_what_decides_and_what_checks_loads_no_heavy_library(package: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"module = importlib.import_module({package!r})\n"
        "for found in pkgutil.walk_packages(getattr(module, '__path__', []), module.__name__ + '.'):\n"
        "    if not found.name.endswith('.__main__'):\n"
        "        importlib.import_module(found.name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_nothing_published_names_a_machine_or_an_index() -> None:
    """Paths of a developer's machine and hosts of package indexes have no place in what others clone."""
    words = (
        "/" + "work/",
        "/" + "tmp/",
        "/" + "opt/",
        "/" + "root/",
        "/" + "home/",
        "pypi." + "org",
        "files.python" + "hosted",
    )
    found = {}
    for path in tracked_files():
        if path.suffix in {".safetensors", ".png", ".ico", ".woff2"} or path.name in {"LICENSE", "tokenizer.json"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if hits := [word for word in words if word in text]:
            found[id_of(path)] = hits
    assert not found
