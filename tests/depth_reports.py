"""Reports of a replica, for tests of whoever reads them."""

from peagle.router.depth import EMBEDDED_CPU, AcceptancePrior, DepthSettings
from peagle.router.snapshot import DepthTable, StepCell, StepReport, StepStats

SETTINGS = DepthSettings(
    depth_max=7, depth_static=5, batch_max=32, cost=EMBEDDED_CPU, acceptance=AcceptancePrior.geometric(7)
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
