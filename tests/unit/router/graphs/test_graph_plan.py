"""Which full graphs are captured within a budget, and which are left out."""

from itertools import pairwise

import pytest

from peagle.router.depth.ladder import depth_ladder
from peagle.router.graphs import (
    SPREADS,
    Graph,
    GraphBudget,
    GraphCost,
    GraphLimits,
    GraphSupport,
    GraphTable,
    batch_sizes,
    left_out,
    plan_graphs,
)

LADDER = depth_ladder(7)
COST = GraphCost()
SUPPORTS = (GraphSupport.ALWAYS, GraphSupport.UNIFORM_BATCH)
BUDGETS = [
    GraphBudget(seconds, gib) for seconds in (0.0, 0.5, 3.0, 10.0, 30.0, 1e9) for gib in (0.0, 0.1, 0.6, 2.0, 6.0, 1e9)
]


def limits_of(max_num_seqs: int, tokens_max: int | None = None) -> GraphLimits:
    return GraphLimits(LADDER, max_num_seqs, tokens_max or max_num_seqs * 8)


@pytest.mark.parametrize("spread", SPREADS)
def test_batch_sizes_rise_to_what_is_served_and_add_at_most_their_share_to_a_step(spread: int) -> None:
    for max_num_seqs in range(1, 301):
        sizes = batch_sizes(max_num_seqs, spread)
        assert sizes[0] == 1
        assert sizes[-1] == max_num_seqs
        assert all(above - below <= max(1, below / spread) for below, above in pairwise(sizes))


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("max_num_seqs", [1, 3, 32, 256, 1024])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_a_plan_keeps_to_its_budget_and_names_what_it_leaves_out(
    support: GraphSupport, max_num_seqs: int, budget: GraphBudget
) -> None:
    limits = limits_of(max_num_seqs)
    plan = plan_graphs(limits, support, budget, COST)
    count, most = len(plan.graphs) + len(plan.sizes), max(plan.sizes, default=0)
    assert plan.seconds == pytest.approx(count * COST.graph_s)
    assert plan.gib == pytest.approx(count * COST.graph_gib + most * COST.token_gib)
    assert budget.allows(plan.seconds, plan.gib)
    assert len(set(plan.graphs)) == len(plan.graphs)
    # vLLM bounds full graphs by the largest size of piecewise ones.
    assert all(graph.tokens <= most for graph in plan.graphs)
    table = GraphTable(plan.graphs, support, 8)
    missing = {(each.depth, batch) for each in plan.left_out for batch in range(each.first, each.last + 1)}
    for depth in LADDER:
        for batch in range(1, max_num_seqs + 1):
            has_one = table.choose(batch, batch * (depth + 1), depth + 1).graph is not None
            assert has_one == ((depth, batch) not in missing), (depth, batch)


def test_a_larger_budget_never_leaves_out_more() -> None:
    for support in SUPPORTS:
        for max_num_seqs in (1, 32, 256, 1024):
            before = -1
            for seconds in (0.0, 0.5, 1.0, 3.0, 10.0, 14.0, 30.0, 60.0, 1e9):
                plan = plan_graphs(limits_of(max_num_seqs), support, GraphBudget(seconds, 1e9), COST)
                covered = max_num_seqs * len(LADDER) - sum(each.last - each.first + 1 for each in plan.left_out)
                assert covered >= before, (support, max_num_seqs, seconds)
                before = covered


def test_the_largest_graph_is_captured_first_and_then_those_of_wider_spreads_from_the_smallest() -> None:
    plan = plan_graphs(limits_of(64), GraphSupport.ALWAYS, GraphBudget(1e9, 1e9), COST)
    assert plan.spread == max(SPREADS)

    def place(graph: Graph) -> tuple[int, Graph]:
        return min(each for each in SPREADS if graph.requests in batch_sizes(64, each)), graph

    largest, *rest = plan.graphs
    assert largest == max(plan.graphs)
    assert rest == sorted(rest, key=place)


def test_no_graph_has_more_tokens_than_a_step_may_have() -> None:
    plan = plan_graphs(limits_of(256, tokens_max=512), GraphSupport.ALWAYS, GraphBudget(1e9, 1e9), COST)
    assert max(graph.tokens for graph in plan.graphs) == max(plan.sizes) == 512
    assert "K = 7 from 65 to 256 requests" in str(plan)
    assert left_out(limits_of(256, tokens_max=512), plan.graphs) == plan.left_out


@pytest.mark.parametrize("support", [GraphSupport.NEVER, GraphSupport.SINGLE_TOKENS])
def test_a_backend_that_cannot_replay_drafts_has_no_graphs(support: GraphSupport) -> None:
    plan = plan_graphs(limits_of(8), support, GraphBudget(1e9, 1e9), COST)
    assert plan.graphs == ()
    assert {each.depth for each in plan.left_out} == set(LADDER)


def test_where_any_mix_replays_a_rung_takes_longer_drafts_but_k_0_takes_single_tokens_alone() -> None:
    plan = plan_graphs(limits_of(8), GraphSupport.ALWAYS, GraphBudget(1e9, 1e9), COST)
    for graph in plan.graphs:
        assert graph.query_max == (1 if graph.query_len == 1 else min(8, graph.tokens)), graph
    uniform = plan_graphs(limits_of(8), GraphSupport.UNIFORM_BATCH, GraphBudget(1e9, 1e9), COST)
    assert all(graph.query_max == graph.query_len for graph in uniform.graphs)
