"""What a replica knows about itself, as frozen values with units in their names."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DepthTable:
    """K for each batch size: `depths[b]` applies to a step with b scheduled requests; the last entry to any above."""

    version: int
    depths: tuple[int, ...]

    def depth_at(self, batch_size: int) -> int:
        return self.depths[min(batch_size, len(self.depths) - 1)]


@dataclass(frozen=True, slots=True)
class StepCell:
    """Decode-only steps of one batch size and one K, summed since the engine started.

    `depth` is the K asked for. `drafted[j]` and `accepted[j]` count position j+1 (0-based index) over all drafts
    verified in these steps. `tail_drafted[j]` counts positions that were drafted but cut before verification, and
    `tail_matched[j]` how many of them equalled what the target emitted there, with every position before them accepted
    or matched too. So accepted[j] / drafted[j] below K, and tail_matched[j] / tail_drafted[j] beyond, both estimate
    the probability that the first j+1 drafts are all right.
    """

    batch_size: int
    depth: int
    steps: int
    seconds: float
    tokens: int
    drafts: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    tail_drafted: tuple[int, ...]
    tail_matched: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepStats:
    """All cells of one engine, with the table that it applies now."""

    table: DepthTable
    depth_max: int
    cells: tuple[StepCell, ...]

    @property
    def drafts(self) -> int:
        return sum(cell.drafts for cell in self.cells)

    @property
    def drafted(self) -> int:
        """Draft tokens that were verified."""
        return sum(sum(cell.drafted) for cell in self.cells)

    @property
    def accepted(self) -> int:
        return sum(sum(cell.accepted) for cell in self.cells)

    @property
    def depth_effective(self) -> float | None:
        """Draft tokens verified per draft; None before the first."""
        return self.drafted / self.drafts if self.drafts else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens that the target emits for each verified draft, its own one included; None before the first."""
        return 1.0 + self.accepted / self.drafts if self.drafts else None

    def since(self, earlier: "StepStats") -> "StepStats":
        """What was added after `earlier`, an older reading of the same engine; cells without a new count are left out.

        A tail's matches count when later tokens settle them, so a cell can gain those without a new step.
        """
        before = {(cell.batch_size, cell.depth): cell for cell in earlier.cells}
        changed = [
            _minus(cell, before[key]) if (key := (cell.batch_size, cell.depth)) in before else cell
            for cell in self.cells
        ]
        return StepStats(
            self.table, self.depth_max, tuple(cell for cell in changed if cell.steps or any(cell.tail_drafted))
        )


def _minus(cell: StepCell, before: StepCell) -> StepCell:
    def each(now: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(a - b for a, b in zip(now, then, strict=True))

    return StepCell(
        batch_size=cell.batch_size,
        depth=cell.depth,
        steps=cell.steps - before.steps,
        seconds=cell.seconds - before.seconds,
        tokens=cell.tokens - before.tokens,
        drafts=cell.drafts - before.drafts,
        drafted=each(cell.drafted, before.drafted),
        accepted=each(cell.accepted, before.accepted),
        tail_drafted=each(cell.tail_drafted, before.tail_drafted),
        tail_matched=each(cell.tail_matched, before.tail_matched),
    )
