"""Number of rows that an engine's models have computed."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows that an engine's models have computed since it started, over all steps.

    `verified` are the target's rows: prompt tokens, its own tokens, and drafts to verify. `drafted` are the drafter's:
    the same rows, and those from which it drafts. `unfitted` are the drafted rows that vLLM laid out for the largest K
    whatever the step's K: all of them on a GPU on which our layout kernel does not run, otherwise none.
    """

    verified: int = 0
    drafted: int = 0
    unfitted: int = 0

    def since(self, earlier: "RowCounts") -> "RowCounts":
        """Return what was added after `earlier`."""
        return RowCounts(
            self.verified - earlier.verified, self.drafted - earlier.drafted, self.unfitted - earlier.unfitted
        )


NO_ROWS = RowCounts()
