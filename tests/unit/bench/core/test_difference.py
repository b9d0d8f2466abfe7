"""Comparison of two results, and refusal of results that are not comparable."""

import json
from pathlib import Path
from typing import Any

import pytest

from peagle.bench.core.bench_settings import SCHEMA_VERSION
from peagle.bench.core.difference import difference, remarks
from peagle.bench.core.output import read_result
from peagle.errors import ConfigError


def row(method: str, concurrency: int, speeds: list[float]) -> dict[str, Any]:
    return {"method": method, "depth": 7, "concurrency": concurrency, "output_tokens_per_s": {"repeats": speeds}}


def result(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = {
        "schema_version": SCHEMA_VERSION,
        "kind": "speculation",
        "target": "abc",
        "prompts": {"digest": "d"},
        "output_tokens": 64,
        "eager": False,
        "commit": "one",
        "hardware": {"processor": "CPU"},
        "rows": list(rows) or [row("p-eagle", 1, STEADY)],
    }
    return made | changes


STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]
FASTER = [each * 1.2 for each in STEADY]
NOISY = [80.0, 130.0, 100.0, 120.0, 90.0]


def test_each_cell_is_faster_slower_or_cannot_be_told_apart() -> None:
    one = result(row("p-eagle", 1, FASTER), row("p-eagle", 8, STEADY), row("none", 1, NOISY))
    other = result(row("p-eagle", 1, STEADY), row("p-eagle", 8, FASTER), row("none", 1, STEADY))
    rows = difference(one, other)["rows"]
    assert [each["verdict"] for each in rows] == ["faster", "slower", "cannot be told apart"]
    assert rows[0]["ratio"] == pytest.approx(1.2)
    assert rows[0]["low"] < 1.2 < rows[0]["high"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"target": "other"}, "target"),
        ({"prompts": {"digest": "e"}}, "prompts"),
        ({"output_tokens": 128}, "output_tokens.*64 against 128"),
        ({"kind": "dispatch"}, "kind"),
        ({"schema_version": 1}, "B: schema_version = 1"),
        ({"rows": None}, "B: rows"),
        ({"rows": [{"method": "none"}]}, r"B: rows\.0\.concurrency"),
        ({"rows": [row("none", 1, [0.0])]}, "greater than 0"),
        ({"rows": [row("eagle3", 1, STEADY)]}, "no cell in common"),
    ],
)
def test_results_about_different_things_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        difference(result(), result(**change))


def test_what_may_differ_is_said() -> None:
    other = result(row("p-eagle", 1, STEADY), row("p-eagle", 8, STEADY), commit="two", hardware={"processor": "GPU"})
    found = difference(result(), other)
    assert found["differs"] == {"commit": ["one", "two"], "hardware.processor": ["CPU", "GPU"]}
    said = " ".join(remarks(found))
    assert "commit: one against two" in said
    assert "Only B has p-eagle K=7 at 8." in said


def test_too_few_repeats_are_named_as_the_reason() -> None:
    found = difference(result(row("none", 1, FASTER[:3])), result(row("none", 1, STEADY)))
    assert found["rows"][0]["verdict"] == "cannot be told apart"
    assert any("--repeats" in line for line in remarks(found))


def test_a_result_is_read_from_its_folder_or_its_file_and_anything_else_is_named(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(json.dumps({"rows": []}))
    assert read_result(tmp_path) == read_result(file) == {"rows": []}
    for text in ("[]", "{"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="has no result"):
            read_result(tmp_path)
    with pytest.raises(ConfigError, match="absent"):
        read_result(tmp_path / "absent")
