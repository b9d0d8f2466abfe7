"""How many rows an engine's models passed over."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that an engine's models passed over since it started, in all steps.

    `verified` are the target's: tokens of prompts, tokens of its own, drafts that it checked. `drafted` are the
    drafter's: the same rows, and those that it drafts from. `unfitted` are those of them that vLLM laid out, for the
    largest K whatever K was: all of them on a GPU whose kernel for it does not run, else none.
    """

    verified: int = 0
    drafted: int = 0
    unfitted: int = 0

    def since(self, earlier: "RowCounts") -> "RowCounts":
        """What was added after `earlier`."""
        return RowCounts(
            self.verified - earlier.verified, self.drafted - earlier.drafted, self.unfitted - earlier.unfitted
        )


NO_ROWS = RowCounts()
