"""Contents of the pictures of a comparison of engines."""

from xml.etree import ElementTree

from peagle.bench.core.statistics import DraftCounts
from peagle.bench.engines.speculation_report import acceptance_by_depth, draw, fastest_by_concurrency
from peagle.bench.engines.speculation_rows import result_rows
from support.bench_runs import EAGLE3, NONE, PEAGLE3, PEAGLE7, run, runs


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
    lines = fastest_by_concurrency(result_rows(one | eight))
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
