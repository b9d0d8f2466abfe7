"""Full CUDA graphs of decode steps, and the graph that a step uses.

A full graph replays a whole pass of the target for a fixed number of requests and tokens. A step with fewer of either
is padded. What else a graph covers depends on the attention backend captured in it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class GraphSupport(IntEnum):
    """What the backend's captured attention can replay; values and order are vLLM's."""

    NEVER = 0
    SINGLE_TOKENS = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class GraphKind(StrEnum):
    """How a step runs: as one graph, as pieces with attention launched between them, or as single launches."""

    FULL = "full"
    PIECEWISE = "piecewise"
    NONE = "none"


class Uncovered(StrEnum):
    """Why a step has no full graph."""

    BACKEND = "the attention backend cannot replay a batch with drafts"
    PROMPT = "a request computes more than its draft"
    REQUESTS = "it has more requests than any graph"
    TOKENS = "it has more tokens than any graph with enough requests"
    MIXED = "its requests verify different numbers of drafts, which the attention backend cannot replay"
    OFF_LADDER = "no graph is captured for its K"


@dataclass(frozen=True, slots=True, order=True)
class Graph:
    """Room for `tokens` tokens of `requests` requests, each with at most `query_max`; ordered by cost."""

    tokens: int
    requests: int
    query_max: int

    @property
    def query_len(self) -> int:
        """Tokens of each request in the batch that is captured."""
        return self.tokens // self.requests


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """How a step runs.

    Attributes:
        kind: Full graph, piecewise, or none.
        graph: The full graph to which it is padded.
        tokens: Number of tokens that it computes, including padding.
        uncovered: Why it has no full graph.
    """

    kind: GraphKind
    graph: Graph | None
    tokens: int
    uncovered: Uncovered | None = None


class GraphTable:
    """The graphs of one engine, indexed by what they cover.

    Args:
        graphs: The full graphs.
        support: What its attention backends can replay; the weakest counts.
        query_max: Tokens of a request with a full draft.
        piecewise_sizes: Token counts with piecewise graphs, ascending.
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
        # A uniform batch only uses graphs of its own query length.
        self._by_query_len: dict[int, list[Graph]] = {}
        for graph in self.graphs:
            self._by_query_len.setdefault(graph.query_len, []).append(graph)

    def choose(self, requests: int, tokens: int, query_max: int) -> GraphChoice:
        """Choose how to run a step of `requests` requests with `tokens` tokens in all, at most `query_max` each.

        Takes the graph with the least padding: first the fewest tokens, then the fewest requests.
        """
        graph = self._uniform(requests, query_max) if tokens == requests * query_max else None
        # A step of single tokens cannot use a graph captured for more: FlashAttention 3 uses another layout.
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
        """Return the smallest graph captured with this query length."""
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
