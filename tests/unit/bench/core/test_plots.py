"""Pictures: what they show, and that they can be read on a light and on a dark page."""

from xml.etree import ElementTree

import pytest

from peagle.bench.core.plots import INK, STYLES, acceptance_by_depth, draw, series_by_concurrency
from peagle.bench.core.rows import result_rows
from peagle.bench.core.statistics import DraftCounts
from support.bench_runs import EAGLE3, NONE, PEAGLE3, PEAGLE7, run, runs

LIGHT, DARK = "#ffffff", "#0d1117"


def luminance(color: str) -> float:
    """Relative luminance of WCAG 2.1."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", [LIGHT, DARK])
@pytest.mark.parametrize("color", [INK, *(color for color, _, _ in STYLES.values())])
def test_every_colour_stands_out_from_both_pages(color: str, page: str) -> None:
    darker, lighter = sorted((luminance(color), luminance(page)))
    assert (lighter + 0.05) / (darker + 0.05) >= 3.0, "WCAG 2.1 asks 3:1 of graphics"


def test_pictures_are_svg_without_a_background_and_the_same_each_time() -> None:
    result = {"rows": result_rows(runs(), price_per_hour=2.0), "price_per_hour": 2.0}
    pictures = draw(result)
    assert set(pictures) == {"throughput.svg", "acceptance_length.svg", "cost.svg"}
    assert draw(result) == pictures
    for picture in pictures.values():
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
        assert b"fill: #ffffff" not in picture


def test_without_a_price_there_is_no_picture_of_cost_and_without_drafts_none_of_acceptance() -> None:
    rows = result_rows({cell: each for cell, each in runs().items() if cell[0].method == "none"})
    assert set(draw({"rows": rows, "price_per_hour": None})) == {"throughput.svg"}


def test_a_line_of_throughput_has_each_method_at_its_fastest_k() -> None:
    one = {cell: repeats[:1] for cell, repeats in runs().items() if cell[0] != NONE}
    eight = {(EAGLE3, 8): [run(300)], (PEAGLE3, 8): [run(500)], (PEAGLE7, 8): [run(400)]}
    lines = series_by_concurrency(result_rows(one | eight))
    assert [(row["concurrency"], row["depth"]) for row in lines["p-eagle"]] == [(1, 7), (8, 3)]
    assert [row["concurrency"] for row in lines["eagle3"]] == [1, 8]


def test_acceptance_length_sums_the_drafts_of_all_concurrencies() -> None:
    few, many = DraftCounts(1, (1, 1), (1, 1)), DraftCounts(3, (3, 3), (0, 0))
    cells = {
        (PEAGLE7, 1): [run(100, counts=few)],
        (PEAGLE7, 8): [run(100, counts=many)],
        (PEAGLE3, 1): [run(100, counts=few)],
        (EAGLE3, 1): [run(100, counts=many)],
    }
    found = acceptance_by_depth(result_rows(cells))
    assert found == {"p-eagle": [(3, 3.0), (7, 1.5)], "eagle3": [(3, 1.0)]}
