"""Runs of a comparison whose figures can be computed by hand."""

from peagle.bench.core.closed_loop import Trace
from peagle.bench.core.records import Run
from peagle.bench.core.statistics import DraftCounts
from peagle.bench.engines.engine_plan import Variant

NONE, EAGLE3, PEAGLE3, PEAGLE7 = (
    Variant(0, "none", 0),
    Variant(1, "eagle3", 3),
    Variant(2, "p-eagle", 3),
    Variant(2, "p-eagle", 7),
)


def run(tokens_per_s: float, last_token: int = 9, counts: DraftCounts | None = None) -> Run[Trace]:
    """One request of ten tokens, the first at 10 ms and the rest 20 ms later."""
    trace = Trace((*range(9), last_token), (0.01, 0.03))
    return Run(10 / tokens_per_s, 5, (trace,), counts=counts or DraftCounts(0, (), ()))


def runs() -> dict[tuple[Variant, int], list[Run[Trace]]]:
    drafted = DraftCounts(4, (4, 4, 4), (3, 2, 1))
    return {
        (NONE, 1): [run(100), run(50)],
        (EAGLE3, 1): [run(120), run(60)],
        (PEAGLE3, 1): [run(180, counts=drafted), run(90, counts=drafted)],
        (PEAGLE7, 1): [run(200), run(100, last_token=8)],
    }
