"""Step times of a comparison's engines by batch size and K, kept in the journal and in the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from peagle.bench.core import report_parts as parts
from peagle.bench.core.journal import Journal
from peagle.router.depth.cost_table import CostTable
from peagle.router.snapshot import StepCell, StepTime

STEPS_MIN = 3
"""Fewest steps for a meaningful time."""
_COLUMNS_MAX = 12


@dataclass(frozen=True, slots=True)
class StepCosts:
    """The journal line with the step times of one start of an engine."""

    times: tuple[StepTime, ...]
    kind: Literal["step_costs"] = "step_costs"

    def enter(self, journal: Journal) -> None:
        journal.notes.append(self)


def times_since(now: Sequence[StepCell], before: Sequence[StepCell]) -> tuple[StepTime, ...]:
    """Return the step times between two readings of an engine's sums."""
    known = {(cell.batch_size, cell.depth): (cell.steps, cell.seconds) for cell in before}
    added = []
    for cell in now:
        steps, seconds = known.get((cell.batch_size, cell.depth), (0, 0.0))
        added.append(StepTime(cell.batch_size, cell.depth, cell.steps - steps, cell.seconds - seconds))
    return CostTable.of(added).times


def cost_rows(journal: Journal) -> list[dict[str, Any]]:
    """Return a result's `cost_table`: decode-only steps of the live engine; read it with `CostTable`."""
    times = [each for note in journal.notes if isinstance(note, StepCosts) for each in note.times]
    return CostTable.of(times, STEPS_MIN).plain()


def cost_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the table in Markdown: milliseconds per step, a line per frequent batch size."""
    rows: Sequence[Mapping[str, Any]] = result.get("cost_table") or ()
    if not rows:
        return []
    table = CostTable.from_plain(rows)
    by_size = {size: [each for each in table.times if each.batch_size == size] for size in table.batch_sizes}
    most = sorted(by_size, key=lambda size: sum(each.steps for each in by_size[size]), reverse=True)[:_COLUMNS_MAX]
    lines = []
    for size in sorted(most):
        step_ms = {each.depth: 1e3 * each.seconds / each.steps for each in by_size[size]}
        cells = [f"{step_ms[depth]:.2f}" if depth in step_ms else "" for depth in table.depths]
        lines.append([str(size), "ms", *cells])
    headings = ["at once", "", *(f"K = {depth}" for depth in table.depths)]
    return ["A decode-only step, by requests in the batch and K:", "", *parts.markdown_table(headings, lines), ""]
