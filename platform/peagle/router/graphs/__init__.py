"""Full CUDA graphs for decode steps of any depth: which graphs an engine captures, and which one a step uses.

plan = plan_graphs(GraphLimits(ladder, max_num_seqs, tokens_max), support, budget, GraphCost())
table = GraphTable(plan.graphs, support, query_max, plan.sizes)
choice = table.choose(requests, tokens, query_max)
"""

from peagle.router.graphs.graph_plan import (
    SPREADS,
    GraphBudget,
    GraphCost,
    GraphLimits,
    GraphPlan,
    LeftOut,
    batch_sizes,
    left_out,
    plan_graphs,
)
from peagle.router.graphs.graph_shapes import Graph, GraphChoice, GraphKind, GraphSupport, GraphTable, Uncovered

__all__ = [
    "SPREADS",
    "Graph",
    "GraphBudget",
    "GraphChoice",
    "GraphCost",
    "GraphKind",
    "GraphLimits",
    "GraphPlan",
    "GraphSupport",
    "GraphTable",
    "LeftOut",
    "Uncovered",
    "batch_sizes",
    "left_out",
    "plan_graphs",
]
