"""Full CUDA graphs of decode steps, and the one that a step takes.

A full graph replays a whole pass of the target for a fixed number of requests and tokens. A step that has fewer of
either is padded up to them. How much more a graph covers depends on the attention backend that is captured in it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class GraphSupport(IntEnum):
    """What a backend's captured attention may be replayed with; values and order are vLLM's."""

    NEVER = 0
    SINGLE_TOKENS = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class GraphKind(StrEnum):
    """How a step runs: as one graph, as pieces between which attention is launched, or launch by launch."""

    FULL = "full"
    PIECEWISE = "piecewise"
    NONE = "none"


class Uncovered(StrEnum):
    """Why a step has no full graph."""

    BACKEND = "the attention backend replays no batch of drafts"
    PROMPT = "a request computes more than its draft"
    REQUESTS = "it has more requests than any graph"
    TOKENS = "it has more tokens than any graph for as many requests"
    MIXED = "its requests verify different numbers of drafts, which the attention backend does not replay"
    OFF_LADDER = "no graph is captured for its K"


@dataclass(frozen=True, slots=True, order=True)
class Graph:
    """Room for `tokens` of `requests`, none of which has more than `query_max`; in the order of their cost."""

    tokens: int
    requests: int
    query_max: int

    @property
    def query_len(self) -> int:
        """Tokens of each request in the batch that it is captured with."""
        return self.tokens // self.requests


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """What a step runs as.

    Attributes:
        kind: With or without a full graph.
        graph: The full graph that it is padded to.
        tokens: How many it computes, with padding.
        uncovered: Why it has no full graph.
    """

    kind: GraphKind
    graph: Graph | None
    tokens: int
    uncovered: Uncovered | None = None


class GraphTable:
    """The graphs of one engine, by what they cover.

    Args:
        graphs: The full ones.
        support: What its attention backends can do, the least of them.
        query_max: Tokens of a request with a whole draft.
        piecewise_sizes: Token counts, ascending, that have piecewise graphs.
    """

    def __init__(
        self, graphs: Iterable[Graph], support: GraphSupport, query_max: int, piecewise_sizes: Sequence[int] = ()
    ) -> None:
        self.graphs = tuple(sorted(graphs)) if support >= GraphSupport.UNIFORM_BATCH else ()
        self.support = support
        self.query_max = query_max
        self._piecewise_sizes = tuple(piecewise_sizes)
        self._tokens = [graph.tokens for graph in self.graphs]
        self._requests_max = max((graph.requests for graph in self.graphs), default=0)
        # A uniform batch takes graphs of its own query length alone.
        self._by_query_len: dict[int, list[Graph]] = {}
        for graph in self.graphs:
            self._by_query_len.setdefault(graph.query_len, []).append(graph)

    def choose(self, requests: int, tokens: int, query_max: int) -> GraphChoice:
        """What a step runs as whose `requests` have `tokens` in all, `query_max` at most.

        The graph with the least padding is taken: first the fewest tokens, then the fewest requests.
        """
        graph = self._uniform(requests, query_max) if tokens == requests * query_max else None
        # A step of single tokens takes no graph that was captured for more: FlashAttention 3 lays it out otherwise.
        if self.support == GraphSupport.ALWAYS and query_max > 1 and (graph is None or graph.tokens > tokens):
            graph = self._mixed(requests, tokens, query_max) or graph
        if graph is not None:
            return GraphChoice(GraphKind.FULL, graph, graph.tokens)
        place = bisect_left(self._piecewise_sizes, tokens)
        uncovered = self._why_not(requests, tokens, query_max)
        if place < len(self._piecewise_sizes):
            return GraphChoice(GraphKind.PIECEWISE, None, self._piecewise_sizes[place], uncovered=uncovered)
        return GraphChoice(GraphKind.NONE, None, tokens, uncovered=uncovered)

    def _uniform(self, requests: int, query_len: int) -> Graph | None:
        """The smallest graph that is captured with this query length."""
        graphs = self._by_query_len.get(query_len, ())
        return next((graph for graph in graphs if graph.requests >= requests), None)

    def _mixed(self, requests: int, tokens: int, query_max: int) -> Graph | None:
        for place in range(bisect_left(self._tokens, tokens), len(self.graphs)):
            graph = self.graphs[place]
            if graph.requests >= requests and graph.query_max >= query_max:
                return graph
        return None

    def _why_not(self, requests: int, tokens: int, query_max: int) -> Uncovered:
        if not self.graphs:
            return Uncovered.BACKEND
        if query_max > self.query_max:
            return Uncovered.PROMPT
        if requests > self._requests_max:
            return Uncovered.REQUESTS
        if self.support == GraphSupport.ALWAYS:
            return Uncovered.TOKENS
        if tokens != requests * query_max:
            return Uncovered.MIXED
        return Uncovered.TOKENS if query_max in self._by_query_len else Uncovered.OFF_LADDER
