"""Compares two results of the same measurement cell by cell: faster, slower, or within noise. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from rich import box
from rich.table import Table

from peagle.bench.core.bench_settings import SCHEMA_VERSION
from peagle.bench.core.bootstrap import CONFIDENCE, MIN_REPEATS, ratio_of_medians
from peagle.bench.core.records import NONE
from peagle.errors import ConfigError

SAME = {
    "kind": "kind of measurement",
    "target": "target",
    "prompts.digest": "choice of prompts",
    "output_tokens": "number of output tokens",
}
"""Fields that two comparable results must have in common."""
NOTED = ("eager", "commit", "versions", "hardware.processor", "hardware.cores", "hardware.gpus")
"""Fields that may differ, possibly on purpose, but that a reader has to know."""

Result = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Speeds:
    repeats: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class _Cell:
    """The relevant values of a result's row."""

    concurrency: int
    method: str
    depth: int | str
    output_tokens_per_s: _Speeds

    @property
    def place(self) -> tuple[int, str, int | str]:
        return self.concurrency, self.method, self.depth

    @property
    def variant(self) -> str:
        return self.method if self.method == NONE else f"{self.method} K={self.depth}"


_CELLS = TypeAdapter(list[_Cell])


def difference(one: Result, other: Result) -> dict[str, Any]:
    """Return `one` over `other`: a row per common cell, other differences, and cells that only one has.

    Raises ConfigError if they are not comparable, have no cell in common, or cannot be read.
    """
    cells, rivals = ({cell.place: cell for cell in _cells(side, result)} for side, result in (("A", one), ("B", other)))
    for path, words in SAME.items():
        if (left := _at(one, path)) != (right := _at(other, path)):
            problem = f"the {words} differs, {left!r} against {right!r}"
            raise ConfigError(path, None, problem, "Compare results that measured the same thing.")
    both = sorted(cells.keys() & rivals.keys(), key=list(cells).index)
    if not both:
        fix = "Measure the same methods, K and concurrency."
        raise ConfigError("rows", None, "the results have no cell in common", fix)
    return {
        "schema_version": SCHEMA_VERSION,
        "confidence": CONFIDENCE,
        "differs": {path: [_at(one, path), _at(other, path)] for path in NOTED if _at(one, path) != _at(other, path)},
        "only_in_one": [f"{cell.variant} at {cell.concurrency}" for cell in cells.values() if cell.place not in rivals],
        "only_in_other": [
            f"{cell.variant} at {cell.concurrency}" for cell in rivals.values() if cell.place not in cells
        ],
        "rows": [_difference_row(cells[place], rivals[place]) for place in both],
    }


def difference_table(rows: list[Row]) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"A over B: ratio of median tokens/s, with its {CONFIDENCE:.0%} confidence interval",
    )
    for heading in ("at once", "method", "A / B", "A is"):
        table.add_column(heading, justify="right" if heading in ("at once", "A / B") else "left", no_wrap=True)
    for row in rows:
        interval = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        table.add_row(str(row["concurrency"]), row["variant"], interval, row["verdict"])
    return table


def remarks(found: Mapping[str, Any]) -> list[str]:
    """Return notes for the reader of the table."""
    lines = [f"They differ in {path}: {left} against {right}." for path, (left, right) in found["differs"].items()]
    lines += [
        f"Only {side} has {', '.join(found[key])}."
        for side, key in (("A", "only_in_one"), ("B", "only_in_other"))
        if found[key]
    ]
    if any(row["repeats"] < MIN_REPEATS for row in found["rows"]):
        lines.append(f"With fewer than {MIN_REPEATS} repeats on a side, nothing can be told apart; raise --repeats.")
    wrong = len(found["rows"]) * (1 - CONFIDENCE)
    lines.append(f"Of {len(found['rows'])} cells without any difference, about {wrong:.1f} would look different.")
    return lines


def _cells(side: str, result: Result) -> list[_Cell]:
    version = result.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ConfigError(f"{side}: schema_version", version, f"this version reads {SCHEMA_VERSION}", "Measure again.")
    try:
        return _CELLS.validate_python(result.get("rows"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, ("rows", *first["loc"])))
        raise ConfigError(f"{side}: {place}", None, first["msg"], "Measure again.") from None


def _difference_row(cell: _Cell, rival: _Cell) -> Row:
    speeds, rivals = cell.output_tokens_per_s.repeats, rival.output_tokens_per_s.repeats
    interval = ratio_of_medians(speeds, rivals)
    repeats = min(len(speeds), len(rivals))
    return {
        "concurrency": cell.concurrency,
        "method": cell.method,
        "depth": cell.depth,
        "variant": cell.variant,
        "tokens_per_s": median(speeds),
        "other_tokens_per_s": median(rivals),
        "repeats": repeats,
        **asdict(interval),
        "verdict": interval.verdict(repeats).value,
    }


def _at(result: Result, path: str) -> Any:
    value: Any = result
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
