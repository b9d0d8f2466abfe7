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

    `drafted[j]` and `accepted[j]` count position j+1 (0-based index) over all drafts verified in these steps;
    `tail_drafted[j]` and `tail_matched[j]` count positions that were drafted but cut before verification, and how
    often they equalled what the target emitted next, given that every position before them was accepted or matched.
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
