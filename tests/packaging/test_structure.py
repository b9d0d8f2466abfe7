"""Someone new finds the room for a change from the folder names alone: what holds the house in that order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.imports import MODULES, PACKAGE, imported_modules, name_of
from support.paths import REPOSITORY

FOLDER_FILES_MAX = 20
UNIT_TESTS = REPOSITORY / "tests" / "unit"
STEMS = {path.stem for path in MODULES if not path.stem.startswith("__")}
FOLDERS = {path.parent for path in MODULES}


def circle_in(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of `graph`, empty where it has none."""
    try:
        TopologicalSorter({node: set(on) for node, on in graph.items()}).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name_of(path): imported_modules(path) - {name_of(path)} for path in MODULES}
    assert circle_in(graph) == []


def test_no_folders_of_one_room_import_each_other_in_a_circle() -> None:
    """Between neighbours: a room and what lies in it may know each other."""
    graphs: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in MODULES:
        own = name_of(path).split(".")
        for other in (name.split(".") for name in imported_modules(path)):
            shared = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
            if shared is not None and min(len(own), len(other)) > shared + 1:
                graphs[".".join(own[:shared])][own[shared]].add(other[shared])
    assert {room: circle for room, graph in graphs.items() if (circle := circle_in(graph))} == {}


def test_a_file_s_name_is_unique_and_no_folder_s() -> None:
    names = Counter(path.stem for path in MODULES if not path.stem.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []
    assert STEMS & {folder.name for folder in FOLDERS} == set()


@pytest.mark.parametrize("folder", sorted(FOLDERS), ids=lambda folder: str(folder.relative_to(PACKAGE.parent)))
def test_a_folder_can_be_taken_in_at_a_glance(folder: object) -> None:
    files = [path for path in MODULES if path.parent == folder and not path.stem.startswith("__")]
    assert len(files) <= FOLDER_FILES_MAX


@pytest.mark.parametrize("path", sorted(UNIT_TESTS.rglob("test_*.py")), ids=lambda path: path.stem)
def test_a_unit_test_lies_where_its_module_does(path: Path) -> None:
    """`unit/ROOM/test_MODULE.py`, or `test_MODULE_ASPECT.py` where one module has several."""
    room = PACKAGE / path.parent.relative_to(UNIT_TESTS)
    subject = path.stem.removeprefix("test_")
    modules = [module.stem for module in MODULES if module.parent == room]
    assert any(subject == name or subject.startswith(f"{name}_") for name in modules), sorted(modules)


def test_a_circle_is_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    assert circle_in({"a": {"b", "c"}, "b": {"c"}}) == []
