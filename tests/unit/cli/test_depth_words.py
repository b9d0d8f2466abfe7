"""Descriptions of K in `peagle status` and `peagle chat`."""

from typing import Any

import pytest

from peagle.cli.depth_words import by_batch_size, depth_line


@pytest.mark.parametrize(
    ("depths", "told"),
    [
        ([7], "K = 7"),
        ([5, 5, 5], "K = 5"),
        ([7, 7, 5, 5, 0], "K by concurrent requests: 7 for 1, 5 for 2 to 3, 0 for 4"),
        # No step has an empty batch.
        ([3, 7, 7], "K = 7"),
    ],
)
def test_k_is_told_by_runs_of_batch_sizes(depths: list[int], told: str) -> None:
    assert by_batch_size(depths) == told


def replica(**changes: Any) -> dict[str, Any]:
    known = {"depth_planned": 7, "speedup_ratio": 1.42, "speedup_low": 1.314, "speedup_high": 1.54}
    return {"depths": [7, 7, 5], "depth_reason": "the depths that promise the most tokens/s", **known, **changes}


def test_a_line_says_k_why_and_what_speculation_gains_with_its_interval() -> None:
    assert depth_line(replica()) == (
        "K by concurrent requests: 7 for 1, 5 for 2 (the depths that promise the most tokens/s)"
        " · speculation speedup 1.42 (95 % interval 1.31 to 1.54)"
    )


def test_a_depth_of_0_has_nothing_to_be_compared_with() -> None:
    off = replica(depths=[0, 0], depth_planned=0, speedup_ratio=1.0, speedup_low=1.0, speedup_high=1.0)
    assert str(depth_line(off)).endswith("· speculation is off at this load")


def test_what_is_not_known_is_not_told() -> None:
    assert depth_line({"depths": [7], "depth_reason": "as configured"}) == "K = 7 (as configured)"
    adapting = {"depths": [7], "depth_reason": "as the replica had it", "depth_mode": "adaptive"}
    assert depth_line(adapting) == "K = 7 (as the replica had it) · speedup not known yet"
    assert depth_line({"depths": []}) is None
    assert depth_line({}) is None
