"""Which full graph a step uses, compared with a search through all graphs, for every batch that can occur."""

from dataclasses import dataclass
from functools import cached_property

import pytest

from peagle.router.depth.ladder import depth_ladder
from peagle.router.graphs import (
    Graph,
    GraphBudget,
    GraphCost,
    GraphKind,
    GraphLimits,
    GraphPlan,
    GraphSupport,
    GraphTable,
    Uncovered,
    plan_graphs,
)

MAX_NUM_SEQS = 256
REQUESTS = range(1, 301)
UNBOUNDED = GraphBudget(1e9, 1e9)
# A budget below the memory of all graphs, so that large batches have none.
SMALL = GraphBudget(1e9, 1.5)
LADDERS = (depth_ladder(7), depth_ladder(10), depth_ladder(1))
EACH_LADDER = pytest.mark.parametrize("ladder", LADDERS, ids=str)
EACH_BUDGET = pytest.mark.parametrize("budget", [UNBOUNDED, SMALL], ids=["unbounded", "small"])
MIXING = (GraphSupport.ALWAYS, GraphSupport.UNIFORM_BATCH)
EACH_SUPPORT = pytest.mark.parametrize("support", MIXING, ids=lambda support: support.name)


def planned(ladder: tuple[int, ...], support: GraphSupport, budget: GraphBudget) -> GraphPlan:
    limits = GraphLimits(ladder, MAX_NUM_SEQS, MAX_NUM_SEQS * (ladder[-1] + 1))
    return plan_graphs(limits, support, budget, GraphCost())


def table_of(plan: GraphPlan, ladder: tuple[int, ...], support: GraphSupport) -> GraphTable:
    return GraphTable(plan.graphs, support, ladder[-1] + 1, plan.sizes)


@dataclass(frozen=True)
class Step:
    """Query lengths of a step's requests."""

    lens: tuple[int, ...]

    @cached_property
    def tokens(self) -> int:
        return sum(self.lens)

    @cached_property
    def longest(self) -> int:
        return max(self.lens)

    @cached_property
    def only(self) -> int | None:
        """The common query length; None if lengths differ."""
        return self.lens[0] if len(set(self.lens)) == 1 else None

    def fits(self, graph: Graph, support: GraphSupport) -> bool:
        """Return whether the graph may be replayed, by vLLM's definition of a backend, without the table's rules."""
        if len(self.lens) > graph.requests:
            return False
        if self.only is not None and self.only * graph.requests == graph.tokens:
            return True
        return support == GraphSupport.ALWAYS and self.tokens <= graph.tokens and self.longest <= graph.query_max


def steps(requests: int, ladder: tuple[int, ...]) -> list[Step]:
    """Return every K of the ladder and one between rungs, for all requests; and two depths in one step, in shares."""
    lens = sorted({depth + 1 for depth in ladder} | {ladder[-1], ladder[-1] + 2})
    uniform = [(query_len,) * requests for query_len in lens]
    shares = sorted({1, requests // 3, requests - 1} & set(range(1, requests)))
    mixed = [
        (low,) * share + (high,) * (requests - share) for share in shares for low in lens for high in lens if low < high
    ]
    return [Step(each) for each in uniform + mixed]


@EACH_LADDER
@EACH_SUPPORT
@EACH_BUDGET
def test_a_step_takes_the_graph_with_the_least_padding_that_covers_it(
    ladder: tuple[int, ...], support: GraphSupport, budget: GraphBudget
) -> None:
    plan = planned(ladder, support, budget)
    table = table_of(plan, ladder, support)
    graphs = sorted(plan.graphs)
    for requests in REQUESTS:
        for step in steps(requests, ladder):
            choice = table.choose(requests, step.tokens, step.longest)
            best = next((graph for graph in graphs if step.fits(graph, support)), None)
            assert (choice.graph is None) == (best is None), (step, choice, best)
            if best is None or choice.graph is None:
                assert choice.kind != GraphKind.FULL
                assert choice.uncovered is not None, step
                continue
            assert step.fits(choice.graph, support), (step, choice)
            assert choice.graph.tokens == choice.tokens == best.tokens, (step, choice, best)
            assert choice.graph.requests == best.requests, (step, choice, best)
            assert choice.uncovered is None


@EACH_SUPPORT
def test_every_k_of_the_ladder_has_a_full_graph_at_every_batch_size_that_is_served(support: GraphSupport) -> None:
    for ladder in LADDERS:
        plan = planned(ladder, support, UNBOUNDED)
        table = table_of(plan, ladder, support)
        assert plan.left_out == ()
        for requests in range(1, MAX_NUM_SEQS + 1):
            for depth in ladder:
                choice = table.choose(requests, requests * (depth + 1), depth + 1)
                assert choice.kind is GraphKind.FULL
                # At most an eighth is padding, from the spread of batch sizes.
                assert choice.tokens * 8 <= requests * (depth + 1) * 9


def test_any_mix_of_drafts_has_a_graph_if_the_backend_replays_it() -> None:
    ladder = depth_ladder(7)
    table = table_of(planned(ladder, GraphSupport.ALWAYS, UNBOUNDED), ladder, GraphSupport.ALWAYS)
    for requests in range(1, MAX_NUM_SEQS + 1):
        for step in steps(requests, ladder):
            choice = table.choose(requests, step.tokens, step.longest)
            assert (choice.kind is GraphKind.FULL) == (step.longest <= 8), (step, choice)


@pytest.mark.parametrize(
    ("support", "step", "uncovered"),
    [
        (GraphSupport.SINGLE_TOKENS, [1, 1], Uncovered.BACKEND),
        (GraphSupport.NEVER, [8], Uncovered.BACKEND),
        (GraphSupport.ALWAYS, [100, 1], Uncovered.PROMPT),
        (GraphSupport.UNIFORM_BATCH, [100, 8], Uncovered.PROMPT),
        (GraphSupport.ALWAYS, [4] * 257, Uncovered.REQUESTS),
        (GraphSupport.UNIFORM_BATCH, [4, 8], Uncovered.MIXED),
        (GraphSupport.UNIFORM_BATCH, [5, 5], Uncovered.OFF_LADDER),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_step_without_a_graph_names_the_reason(support: GraphSupport, step: list[int], uncovered: Uncovered) -> None:
    ladder = depth_ladder(7)
    table = table_of(planned(ladder, support, UNBOUNDED), ladder, support)
    assert table.choose(len(step), sum(step), max(step)).uncovered is uncovered


@EACH_SUPPORT
def test_a_batch_beyond_the_memory_for_graphs_is_named_as_such(support: GraphSupport) -> None:
    ladder = depth_ladder(7)
    table = table_of(planned(ladder, support, SMALL), ladder, support)
    assert table.choose(256, 2048, 8).uncovered is Uncovered.TOKENS
    assert table.choose(8, 64, 8).kind is GraphKind.FULL


def test_without_a_full_graph_a_step_is_padded_to_a_size_of_piecewise_ones_or_has_none() -> None:
    table = GraphTable((), GraphSupport.NEVER, 8, (8, 16, 64))
    assert [(table.choose(1, tokens, 8).kind, table.choose(1, tokens, 8).tokens) for tokens in (8, 17, 65)] == [
        (GraphKind.PIECEWISE, 8),
        (GraphKind.PIECEWISE, 64),
        (GraphKind.NONE, 65),
    ]


def test_single_tokens_take_no_graph_that_was_captured_for_more() -> None:
    table = GraphTable([Graph(16, 8, 8)], GraphSupport.ALWAYS, 8, (16,))
    assert table.choose(8, 9, 2).kind is GraphKind.FULL
    assert table.choose(8, 8, 1).kind is GraphKind.PIECEWISE
