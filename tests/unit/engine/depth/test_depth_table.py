from typing import Any

import pytest

from peagle.engine.depth.depth_table import next_table
from peagle.errors import ConfigError
from peagle.router.snapshot import DepthTable

CURRENT = DepthTable(4, (7, 7, 3))
BATCH_MAX = 8


def check(version: Any, depths: Any) -> DepthTable:
    return next_table(version, depths, CURRENT, depth_max=7, batch_max=BATCH_MAX)


def test_a_newer_table_replaces_the_current_one() -> None:
    assert check(5, [0, 7, 3, 0]) == DepthTable(5, (0, 7, 3, 0))


def test_versions_may_skip_ahead() -> None:
    assert check(900, [1]).version == 900


def test_the_current_table_may_be_sent_again() -> None:
    assert check(4, [7, 7, 3]) == CURRENT


@pytest.mark.parametrize("size", [1, BATCH_MAX, BATCH_MAX + 1])
def test_a_table_may_have_any_length_up_to_the_largest_batch(size: int) -> None:
    assert len(check(5, [2] * size).depths) == size


@pytest.mark.parametrize(
    ("version", "depths", "field", "value"),
    [
        (3, [1], "depth table version", 3),
        (4, [1], "depth table version", 4),
        (-1, [1], "depth table version", -1),
        (5.0, [1], "depth table version", 5.0),
        (True, [1], "depth table version", True),
        ("5", [1], "depth table version", "5"),
        (5, [], "depth table length", 0),
        (5, [1] * (BATCH_MAX + 2), "depth table length", BATCH_MAX + 2),
        (5, None, "depth table length", None),
        (5, "33", "depth table length", "33"),
        (5, [7, 8], "depth at batch size 1", 8),
        (5, [-1], "depth at batch size 0", -1),
        (5, [0, 0, 2.0], "depth at batch size 2", 2.0),
        (5, [True], "depth at batch size 0", True),
        (5, [None], "depth at batch size 0", None),
    ],
)
def test_a_wrong_table_is_refused_by_name_and_value(version: Any, depths: Any, field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        check(version, depths)
    assert refusal.value.field == field
    assert refusal.value.value == value or refusal.value.value is value
    assert refusal.value.fix


@pytest.mark.parametrize(("batch_size", "depth"), [(0, 7), (1, 7), (2, 3), (3, 3), (500, 3)])
def test_the_last_entry_holds_for_every_larger_batch(batch_size: int, depth: int) -> None:
    assert CURRENT.depth_at(batch_size) == depth
