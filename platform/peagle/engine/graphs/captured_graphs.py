"""The full CUDA graphs of one model runner: planned, captured within a budget, and selected. Imports no vllm."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Set

from peagle.router.graphs import (
    Graph,
    GraphBudget,
    GraphChoice,
    GraphLimits,
    GraphSupport,
    GraphTable,
    Uncovered,
    left_out,
)


class CapturedGraphs:
    """The captured part of a runner's plan. Without a plan the runner has vLLM's graphs, and only reports their use.

    Attributes:
        planned: Graphs by vLLM's keys, in the order of capture.
        vital: Graphs that vLLM also captures by itself, without which it does not start.
        capturing: The planned graph that is being warmed up or captured.
        failed: Whether a capture has failed. It may leave CUDA in a state in which others fail as well.
    """

    def __init__(
        self,
        limits: GraphLimits,
        support: GraphSupport,
        budget: GraphBudget,
        planned: Mapping[Hashable, Graph],
        vital: Set[Hashable] = frozenset(),
    ) -> None:
        self.limits = limits
        self.support = support
        self.planned = planned
        self.vital = vital
        self.capturing: Graph | None = None
        self.failed = False
        self._budget = budget
        self._table = GraphTable((), support, limits.query_max)
        self._told: set[Uncovered] = set()
        self._began: tuple[float, float] | None = None

    @property
    def takes_uniform_only(self) -> bool:
        """Whether a step has a full graph only if its requests verify equally many drafts."""
        return bool(self.planned) and self.support == GraphSupport.UNIFORM_BATCH

    def begin(self, now_s: float, free_gib: float) -> None:
        """Record the start of capturing; later calls change nothing."""
        self._began = self._began or (now_s, free_gib)

    def spent(self, now_s: float, free_gib: float) -> tuple[float, float]:
        """Return the seconds and GiB spent since capturing began."""
        began_s, began_gib = self._began or (now_s, free_gib)
        return now_s - began_s, began_gib - free_gib

    def may_go_on(self, now_s: float, free_gib: float) -> bool:
        """Return whether another graph may be captured: none has failed, and the budget has room."""
        return not self.failed and self._budget.allows(*self.spent(now_s, free_gib))

    def finish(self, graphs: Iterable[Graph]) -> None:
        """Use these graphs for steps from now on."""
        self._table = GraphTable(graphs, self.support, self.limits.query_max)

    def left_out(self) -> str:
        """Describe the uniform batches without a full graph."""
        return ", ".join(map(str, left_out(self.limits, self._table.graphs)))

    def choose(self, requests: int, tokens: int, query_max: int, tell: Callable[..., None]) -> Graph | None:
        """Choose the full graph of a step. Reports the first step of each kind without one."""
        choice: GraphChoice = self._table.choose(requests, tokens, query_max)
        reason = choice.uncovered
        if reason is not None and self.planned and self.is_decode(query_max) and reason not in self._told:
            self._told.add(reason)
            text = "A step of %d requests with %d tokens has no full CUDA graph: %s. Further ones are only counted"
            tell(text, requests, tokens, reason)
        return choice.graph

    def is_decode(self, query_max: int) -> bool:
        """Return whether no request of a step computes more than a full draft."""
        return query_max <= self.limits.query_max
