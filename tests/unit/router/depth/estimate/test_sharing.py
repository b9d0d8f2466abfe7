from dataclasses import replace

import pytest

from peagle.router.depth.estimate.sharing import Sharing
from peagle.router.snapshot import StepCell

NONE = (0,) * 3


def cell(equal: tuple[float, ...], shared: tuple[float, ...]) -> StepCell:
    return StepCell(8, 2, 10, 1.0, 200, 80, NONE, NONE, NONE, NONE, equal_right=equal, shared_right=shared)


def test_nothing_is_gained_before_anything_is_known_by_one_request_alone_or_without_drafts() -> None:
    new = Sharing.start(3)
    assert [new.gain_ratio(8, depth) for depth in range(4)] == [1.0] * 4
    told = new.observe([cell((400.0, 600.0, 700.0), (500.0, 700.0, 700.0))])
    assert told.gain_ratio(1, 2) == told.gain_ratio(8, 0) == told.gain_ratio(8, 3) == 1.0


def test_the_gain_is_what_the_engine_expected_and_the_past_fades() -> None:
    sharing = Sharing.start(3)
    for _ in range(10):
        sharing = sharing.observe([cell((400.0, 600.0, 700.0), (500.0, 700.0, 700.0))] * 2)
    assert sharing.gain_ratio(8, 1) == pytest.approx(1.25, abs=0.01)
    assert sharing.gain_ratio(2, 2) == pytest.approx(7 / 6, abs=0.01)
    for _ in range(10):
        sharing = sharing.observe([cell((400.0, 600.0, 700.0), (400.0, 600.0, 700.0))])
    assert sharing.gain_ratio(8, 1) == pytest.approx(1.0, abs=0.01)


def test_cells_without_expectations_change_nothing() -> None:
    sharing = Sharing.start(3).observe([cell((4.0, 6.0, 7.0), (5.0, 7.0, 7.0))])
    assert sharing.observe([replace(cell((), ()), equal_right=(), shared_right=())]) == sharing
    assert sharing.observe([]) == sharing
