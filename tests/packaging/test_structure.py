"""Folder names lead a new reader to the right place for a change: the rules that keep this order."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

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


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    counts = Counter(path.parent for path in MODULES if not path.stem.startswith("__"))
    assert {folder: count for folder, count in counts.items() if count > FOLDER_FILES_MAX} == {}


def test_a_unit_test_lies_where_its_module_does() -> None:
    """`unit/ROOM/test_MODULE.py`, or `test_MODULE_ASPECT.py` where one module has several."""
    modules = {(path.parent, path.stem) for path in MODULES}
    astray = []
    for path in UNIT_TESTS.rglob("test_*.py"):
        room, words = PACKAGE / path.parent.relative_to(UNIT_TESTS), path.stem.split("_")[1:]
        if not any((room, "_".join(words[:count])) in modules for count in range(1, len(words) + 1)):
            astray.append(path)
    assert astray == []


def test_a_circle_is_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []
    assert circle_in({"a": {"b", "c"}, "b": {"c"}}) == []
