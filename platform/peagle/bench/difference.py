"""Two results of the same measurement, cell by cell: faster, slower, or not to be told apart from noise. Pure."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from peagle.bench.bootstrap import CONFIDENCE, MIN_REPEATS, ratio_of_medians
from peagle.bench.settings import SCHEMA_VERSION
from peagle.errors import ConfigError

SAME = {
    "kind": "kind of measurement",
    "target": "target",
    "prompts.digest": "choice of prompts",
    "output_tokens": "number of output tokens",
}
"""What two results must have in common to be about the same thing."""
NOTED = ("eager", "commit", "versions", "hardware.processor", "hardware.cores", "hardware.gpus")
"""What may differ, for that may be what the comparison is about, but has to be known to read it."""

Result = Mapping[str, Any]
Row = dict[str, Any]


def difference(one: Result, other: Result) -> dict[str, Any]:
    """`one` over `other`: a row for each cell that both measured, what else differs, and cells that only one has.

    Raises:
        ConfigError: They did not measure the same thing, or have no cell in common.
    """
    for result in (one, other):
        if result.get("schema_version") != SCHEMA_VERSION:
            problem = f"this version reads {SCHEMA_VERSION}"
            raise ConfigError("schema_version", result.get("schema_version"), problem, "Measure again.")
    for path, words in SAME.items():
        if (left := _at(one, path)) != (right := _at(other, path)):
            problem = f"the {words} is another, {left!r} against {right!r}"
            raise ConfigError(path, None, problem, "Compare results that measured the same thing.")
    cells, rivals = ({_cell(row): row for row in result["rows"]} for result in (one, other))
    rows = [_difference_row(row, rivals[cell]) for cell, row in cells.items() if cell in rivals]
    if not rows:
        raise ConfigError(
            "rows", None, "the two have no cell in common", "Measure the same methods, K and concurrency."
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "confidence": CONFIDENCE,
        "differs": {path: [_at(one, path), _at(other, path)] for path in NOTED if _at(one, path) != _at(other, path)},
        "only_in_one": [_name(row) for cell, row in cells.items() if cell not in rivals],
        "only_in_other": [_name(row) for cell, row in rivals.items() if cell not in cells],
        "rows": rows,
    }


def difference_table(rows: list[Row]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"A over B: ratio of median tokens/s, with the interval that holds it in {CONFIDENCE:.0%} of cases",
    )
    for heading in ("at once", "method", "K", "A tokens/s", "B tokens/s", "A / B", "interval", "A is"):
        table.add_column(heading, justify="left" if heading in ("method", "A is") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row["concurrency"]),
            row["method"],
            str(row["depth"]),
            *(f"{row[side]:.0f}" for side in ("tokens_per_s", "other_tokens_per_s")),
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} to {row['high']:.3f}",
            row["verdict"],
        )
    return table


def remarks(found: Mapping[str, Any]) -> list[str]:
    """What a reader has to know beside the table."""
    lines = [f"They differ in {path}: {left} against {right}." for path, (left, right) in found["differs"].items()]
    lines += [
        f"Only {side} has {', '.join(found[key])}."
        for side, key in (("A", "only_in_one"), ("B", "only_in_other"))
        if found[key]
    ]
    if any(row["repeats"] < MIN_REPEATS for row in found["rows"]):
        lines.append(f"Where a side has fewer than {MIN_REPEATS} repeats, nothing can be told apart: --repeats.")
    wrong = len(found["rows"]) * (1 - CONFIDENCE)
    lines.append(f"Of {len(found['rows'])} cells without any difference, about {wrong:.1f} would look different.")
    return lines


def _difference_row(row: Row, rival: Row) -> Row:
    speeds, rivals = row["output_tokens_per_s"], rival["output_tokens_per_s"]
    interval = ratio_of_medians(speeds["repeats"], rivals["repeats"])
    repeats = min(len(speeds["repeats"]), len(rivals["repeats"]))
    return {
        **{name: row[name] for name in ("concurrency", "method", "depth")},
        "tokens_per_s": speeds["median"],
        "other_tokens_per_s": rivals["median"],
        "repeats": repeats,
        **asdict(interval),
        "verdict": interval.verdict(repeats).value,
    }


def _cell(row: Row) -> tuple[Any, ...]:
    return row["method"], row["depth"], row["concurrency"]


def _name(row: Row) -> str:
    return f"{row['method']} K={row['depth']} at {row['concurrency']}"


def _at(result: Result, path: str) -> Any:
    value: Any = result
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
