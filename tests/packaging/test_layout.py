"""Rules of the repository's layout: location of files, allowed imports, and maximum lengths."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.imports import MODULES, imports, name_of, parsed, private_names, private_uses
from support.paths import REPOSITORY

ROOT = REPOSITORY
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
    tuple(
        f"peagle.{name}"
        for name in (
            *("errors", "import_paths", "metric_types", "metrics", "palette", "prompt_file", "tracing", "upstream"),
        )
    ),
)
HEAVY = {"ray", "vllm", "torch", "kubernetes", "transformers"}

# Names with an underscore that peagle takes over from a library whose hooks they are.
HOOKS = {
    # vLLM's loggers for Ray take their metrics' classes from these.
    *("_counter_cls", "_gauge_cls", "_kv_connector_cls", "_perf_metrics_cls", "_spec_decoding_cls"),
}
# Tests that look into other modules, by file or folder under tests/.
LOOK_INSIDE = {
    "unit/api/test_ingress_first_reply.py": "the ingress is one class of Ray's, and its steps are functions next to it",
    "unit/api/test_relay.py": "the relay waits seconds for an end that does not come",
    "unit/bench": "an engine's rule shows only after minutes on a real engine",
    "unit/engine/patches": "what is patched is private in vLLM, and so is what replaces it",
    "unit/serve/routing/test_request_router.py": "Ray calls the router by private methods, and starts it by itself",
}


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
        pytest.skip("this is not a git checkout")
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


def test_every_module_says_what_it_is_for() -> None:
    modules = [path for path in MODULES if path.name != "__init__.py" or parsed(path).body]
    assert [id_of(path) for path in modules if not ast.get_docstring(parsed(path))] == []


def test_modules_and_functions_stay_short() -> None:
    lines = {id_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}
    functions = {
        f"{id_of(path)}: {node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: count for name, count in functions.items() if count > MAX_FUNCTION_LINES} == {}


def layer_of(module: str) -> int | None:
    """The layer that `module`, or the package it lies in, stands in; None for `peagle` itself and what is in none."""
    under = {name: index for index, names in enumerate(LAYERS) for name in names}
    while module and module not in under:
        module = module.rpartition(".")[0]
    return under.get(module)


def test_every_module_stands_in_a_layer() -> None:
    names = map(name_of, MODULES)
    assert [name for name in names if name != "peagle" and layer_of(name) is None] == [], "add them to LAYERS"


def test_imports_never_go_up() -> None:
    up = {
        (name_of(path), module)
        for path in MODULES
        for module in imports(path)
        if (layer := layer_of(module)) is not None and layer < (layer_of(name_of(path)) or 0)
    }
    assert up == set()


PRIVATE = set().union(*(private_names(parsed(path)) for path in MODULES)) - HOOKS


def looks_inside(path: Path) -> set[str]:
    """Private names of the package that a test uses; not those that it defines itself."""
    return (private_uses(parsed(path)) & PRIVATE) - private_names(parsed(path))


def may_look_inside(path: Path) -> bool:
    return any(path.is_relative_to(ROOT / "tests" / name) for name in LOOK_INSIDE)


def test_tests_ask_for_what_a_module_shows() -> None:
    """Else a change that nobody outside the module would notice breaks tests."""
    tests = [path for path in SOURCES if path.is_relative_to(ROOT / "tests") and not may_look_inside(path)]
    assert {id_of(path): found for path in tests if (found := looks_inside(path))} == {}


@pytest.mark.parametrize("name", LOOK_INSIDE)
def test_only_tests_that_do_look_inside_may(name: str) -> None:
    place = ROOT / "tests" / name
    assert any(looks_inside(path) for path in (place.rglob("*.py") if place.is_dir() else [place]))


@pytest.mark.parametrize(
    "code",
    [
        "from peagle.m import _hidden",
        "m._hidden",
        "monkeypatch.setattr(m, '_hidden', 1)",
        "monkeypatch.setattr('peagle.m._hidden', 1)",
    ],
)
def test_a_private_name_of_another_module_is_found(code: str) -> None:
    assert private_uses(ast.parse(code)) == {"_hidden"}
    assert private_uses(ast.parse("self._hidden; super()._hidden; m.shown")) == set()


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


@pytest.mark.parametrize("module", ["peagle.serve.routing.request_router", "peagle.bench.dispatch.dispatchers"])
def test_a_process_that_only_dispatches_loads_no_engine(module: str) -> None:
    """vLLM takes a core for 15 s to import: Serve's controller loads the request router before anything else starts."""
    code = f"import sys, {module}; print(sorted({{'vllm', 'torch'}} & set(sys.modules)))"
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
