"""Plans the full CUDA graphs to capture: every K of the ladder at a spread of batch sizes, within a budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from peagle.router.graphs.graph_shapes import Graph, GraphSupport

# Batch sizes per doubling, from the densest spread to the sparsest: padding adds at most 1/8, 1/4 and 1/2 to a step.
# With more padding, large steps would lose about what their graphs save.
SPREADS = (8, 4, 2)


@dataclass(frozen=True, slots=True)
class GraphCost:
    """Cost of capturing.

    Attributes:
        graph_s: Seconds per graph. One H200 captured 66 of a 32-layer target in 8 s.
        graph_gib: Memory of one graph. Not measured: an allowance.
        token_gib: Memory per token of the largest graph, shared by all graphs. FlashAttention 3 keeps up to 32 partial
            results per token and head: half a MiB at 32 heads of 128.
    """

    graph_s: float = 0.12
    graph_gib: float = 0.01
    token_gib: float = 1 / 2048


@dataclass(frozen=True, slots=True)
class GraphBudget:
    """The most seconds that graphs may add to an engine's start, and the most memory they may take."""

    seconds: float
    gib: float

    def allows(self, seconds: float, gib: float) -> bool:
        return seconds <= self.seconds and gib <= self.gib


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Bounds of an engine: the rungs of its ladder, `max_num_seqs`, and the most tokens of a graph."""

    ladder: tuple[int, ...]
    max_num_seqs: int
    tokens_max: int

    @property
    def query_max(self) -> int:
        """Tokens of a request with a full draft."""
        return self.ladder[-1] + 1


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Batches of `first` to `last` requests at K = `depth` have no full graph."""

    depth: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"K = {self.depth} from {self.first} to {self.last} requests"


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """The graphs to capture.

    Attributes:
        graphs: Full graphs in the order of capture. If the budget turns out too small, those of small batches exist,
            which save most.
        sizes: Token counts, ascending, of piecewise graphs for steps with prompts and for the drafter.
        spread: Batch sizes per doubling.
        seconds: Expected time to capture.
        gib: Expected memory.
        left_out: Batches without a full graph.
    """

    graphs: tuple[Graph, ...]
    sizes: tuple[int, ...]
    spread: int
    seconds: float
    gib: float
    left_out: tuple[LeftOut, ...]

    def __str__(self) -> str:
        most = max(self.sizes, default=0)
        left_out = f"; left out: {', '.join(map(str, self.left_out))}" if self.left_out else ""
        return (
            f"{len(self.graphs)} full graphs for decode steps and {len(self.sizes)} sizes of piecewise graphs, up to "
            f"{most} tokens, expected to take {self.seconds:.0f} s and {self.gib:.1f} GiB{left_out}"
        )


def batch_sizes(max_num_seqs: int, spread: int) -> tuple[int, ...]:
    """Return batch sizes from 1 to `max_num_seqs`, `spread` per doubling if there are as many."""
    sizes = [1]
    while sizes[-1] < max_num_seqs:
        step = max(1, (1 << (sizes[-1].bit_length() - 1)) // spread)
        sizes.append(min(sizes[-1] + step, max_num_seqs))
    return tuple(sizes)


def plan_graphs(limits: GraphLimits, support: GraphSupport, budget: GraphBudget, cost: GraphCost) -> GraphPlan:
    """Choose the densest spread of batch sizes within the budget.

    If even the sparsest exceeds it, drop the graphs with the most tokens: their steps take longest, so the launches
    that a graph saves matter least.
    """
    plan = None
    for spread in SPREADS:
        plan = _plan(limits, support, spread, _piecewise_sizes(limits, spread), cost)
        if budget.allows(plan.seconds, plan.gib):
            return plan
    assert plan is not None, "SPREADS is not empty"
    while plan.sizes and not budget.allows(plan.seconds, plan.gib):
        plan = _plan(limits, support, plan.spread, plan.sizes[:-1], cost)
    return plan


def _plan(
    limits: GraphLimits, support: GraphSupport, spread: int, sizes: tuple[int, ...], cost: GraphCost
) -> GraphPlan:
    # vLLM bounds full graphs by the largest size of piecewise ones.
    most = max(sizes, default=0)
    graphs = _captured(limits, support, spread, most)
    count = len(graphs) + len(sizes)
    seconds, gib = count * cost.graph_s, count * cost.graph_gib + most * cost.token_gib
    return GraphPlan(graphs, sizes, spread, seconds, gib, left_out(limits, graphs))


def _captured(limits: GraphLimits, support: GraphSupport, spread: int, tokens_max: int) -> tuple[Graph, ...]:
    """Return all graphs of a spread: first the largest, whose memory others reuse, then those of sparser spreads.

    Within each spread the smallest come first, because they save most.
    """
    if support < GraphSupport.UNIFORM_BATCH:
        return ()
    graphs: dict[Graph, None] = {}
    for wider in reversed([each for each in SPREADS if each <= spread]):
        added = {
            _graph(requests, depth + 1, limits.query_max, support)
            for requests in batch_sizes(limits.max_num_seqs, wider)
            for depth in limits.ladder
        }
        fitting = sorted(graph for graph in added if graph.tokens <= tokens_max)
        graphs.update(dict.fromkeys(fitting[-1:] + fitting))
    return tuple(graphs)


def _graph(requests: int, query_len: int, query_max: int, support: GraphSupport) -> Graph:
    """Return one graph of a rung. If the backend replays any mix, some requests may have more drafts than others.

    This excludes the graph of K = 0: backends have a kernel for single tokens that takes nothing else.
    """
    tokens = requests * query_len
    takes_more = support == GraphSupport.ALWAYS and query_len > 1
    return Graph(tokens, requests, min(query_max, tokens) if takes_more else query_len)


def _piecewise_sizes(limits: GraphLimits, spread: int) -> tuple[int, ...]:
    # Multiples of a full draft's query length, because vLLM rounds other sizes up to these.
    requests_max = max(1, limits.tokens_max // limits.query_max)
    sizes = (requests * limits.query_max for requests in batch_sizes(requests_max, spread))
    return tuple(size for size in sizes if size <= limits.tokens_max)


def left_out(limits: GraphLimits, graphs: Sequence[Graph]) -> tuple[LeftOut, ...]:
    """Return the uniform batches of each K that none of `graphs` covers."""
    missing = []
    for depth in limits.ladder:
        covered = max(
            (
                # Except for single tokens, any graph that allows requests this long will do, not only the rung's own.
                min(graph.requests, graph.tokens // (depth + 1))
                for graph in graphs
                if graph.query_len == depth + 1 or (depth and graph.query_max > max(depth, graph.query_len))
            ),
            default=0,
        )
        if covered < limits.max_num_seqs:
            missing.append(LeftOut(depth, covered + 1, limits.max_num_seqs))
    return tuple(missing)
