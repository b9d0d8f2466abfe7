"""A replica's reports, for tests of their readers."""

from peagle.router.depth import AcceptancePrior, CostPrior, DepthSettings
from peagle.router.snapshot import DepthTable, StepCell, StepReport, StepStats

QUICK_CPU = CostPrior(
    step_s=0.5e-3, weights_s=2.1e-3, sequence_s=0.15e-3, token_s=0.13e-3, draft_s=1.7e-3, draft_sequence_s=0.15e-3
)
"""A small model on a quick core: 2.8 ms without speculation at batch 1, 4.6 ms with K = 7."""

SETTINGS = DepthSettings(
    depth_max=7, depth_static=5, batch_max=32, cost=QUICK_CPU, acceptance=AcceptancePrior.geometric(7)
)
STATIC = DepthTable(0, (5,))


def report(*cells: StepCell, table: DepthTable = STATIC) -> StepReport:
    return StepReport(StepStats(table, 7, cells))


def good_cell(batch_size: int = 1, depth: int = 5, steps: int = 100, seconds: float = 0.5) -> StepCell:
    """Steps as the prior expects them, with acceptance of 0.7 at each position."""
    drafts = steps * batch_size
    accepted = tuple(round(drafts * 0.7 ** (j + 1)) if j < depth else 0 for j in range(7))
    drafted = tuple(drafts if j < depth else 0 for j in range(7))
    none = (0,) * 7
    return StepCell(batch_size, depth, steps, seconds, drafts + sum(accepted), drafts, drafted, accepted, none, none)
