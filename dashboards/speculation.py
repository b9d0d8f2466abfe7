"""Results of drafting, chosen K and its reasons, and accuracy of the predictions."""

from grafana_foundation_sdk.models import units

from dashboards.boards import OF_REPLICA, Board
from dashboards.panels import NO_DRAFTS, NOT_ADAPTIVE, WHERE_ADAPTIVE, Panel, Query, Row, Shape
from dashboards.promql import WINDOW, rate, ratio
from peagle.metrics import CAUSE, GRAPH, MODE
from peagle.palette import BAD, WARN

_BY_REPLICA = "model, replica"
_POSITIONS = ("peagle_replica_position_accepted_tokens_total", "peagle_replica_position_draft_tokens_total")


def _gauge(name: str, legend: str = "{{model}} {{replica}}") -> Query:
    return Query(f"{name}{{{OF_REPLICA}}}", legend)


def _or_none_counted(expr: str) -> str:
    """`expr` by replica, with 0 instead of gaps where no event was counted."""
    return f"{expr} or 0 * sum by ({_BY_REPLICA}) (peagle_replica_running_requests{{{OF_REPLICA}}})"


def _per_draft(name: str) -> str:
    return ratio(name, "peagle_replica_drafts_total", OF_REPLICA, _BY_REPLICA)


def _per_drafting_step(name: str) -> str:
    return ratio(name, "peagle_replica_drafting_steps_total", OF_REPLICA, _BY_REPLICA)


YIELD = (
    Panel(
        "Acceptance by position",
        "Share of drafts accepted up to a position, among drafts that reach it, so that it does not depend on K.",
        units.PercentUnit,
        (Query(ratio(*_POSITIONS, OF_REPLICA, "position"), "{{position}}"),),
        highest=1,
        none=NO_DRAFTS,
    ),
    Panel(
        "Acceptance by position, now",
        "The same over the last minutes; if it falls steeply, a small K is enough.",
        units.PercentUnit,
        (Query(ratio(*_POSITIONS, OF_REPLICA, "position"), "{{position}}"),),
        Shape.BARS,
        highest=1,
        none=NO_DRAFTS,
    ),
    Panel(
        "Acceptance length",
        "Tokens per verification, including the target's own token.",
        units.Short,
        (Query(f"1 + {_per_draft('peagle_replica_accepted_tokens_total')}", "{{model}} {{replica}}"),),
        lowest=1,
        none=NO_DRAFTS,
    ),
    Panel(
        "Drafted and accepted",
        "Draft tokens verified and accepted in decode-only steps; the difference is wasted verification.",
        units.Short,
        (
            Query(rate("peagle_replica_draft_tokens_total", OF_REPLICA), "{{model}} drafted"),
            Query(rate("peagle_replica_accepted_tokens_total", OF_REPLICA), "{{model}} accepted"),
        ),
        width=12,
        none=NO_DRAFTS,
    ),
    Panel(
        "Waste",
        "Share of verified draft tokens that were rejected. It is not a fault by itself: it may use idle compute.",
        units.PercentUnit,
        (
            Query(
                "1 - "
                + ratio(
                    "peagle_replica_accepted_tokens_total", "peagle_replica_draft_tokens_total", OF_REPLICA, _BY_REPLICA
                ),
                "{{model}} {{replica}}",
            ),
        ),
        width=12,
        highest=1,
        none=NO_DRAFTS,
    ),
    Panel(
        "Rows drafted and verified",
        "Rows in forward passes of the drafter and the target, including prompts. At a constant K, the drafter has at "
        "most 2 K rows per request and step, and the target K + 1. Rows for the largest K at any K mean that the "
        "layout kernel is off: the engine's log says why.",
        units.Short,
        (
            Query(rate("peagle_replica_drafted_rows_total", OF_REPLICA), "{{model}} drafted"),
            Query(rate("peagle_replica_verified_rows_total", OF_REPLICA), "{{model}} verified"),
            Query(rate("peagle_replica_unfitted_rows_total", OF_REPLICA), "{{model}} drafted for the largest K"),
        ),
        width=24,
        none=NO_DRAFTS,
    ),
)

DEPTH = (
    Panel(
        "Steps by K",
        "Decode steps at each K over time.",
        units.Short,
        (Query(f"sum by (depth) (increase(peagle_replica_depth_steps_total{{{OF_REPLICA}}}[{WINDOW}]))", "{{depth}}"),),
        Shape.ROWS,
        none="Speculation is off, or there were no requests.",
    ),
    Panel(
        "Steps by CUDA graph",
        "Decode steps by CUDA graph mode. A step without a full graph waits for the host at every layer.",
        units.Short,
        (Query(f"sum by (graph) (increase(peagle_replica_graph_steps_total{{{OF_REPLICA}}}[{WINDOW}]))", "{{graph}}"),),
        Shape.STACK,
        none="No GPU: no CUDA graph steps.",
        names=tuple(sorted(GRAPH.values)),
    ),
    Panel(
        "Requested and effective K",
        "Draft tokens per request and drafting step: as planned, and as verified. They differ only near the end of "
        "answers and if a grammar cuts drafts.",
        units.Short,
        (
            Query(_per_drafting_step("peagle_replica_requested_draft_tokens_total"), "{{replica}} requested"),
            Query(_per_drafting_step("peagle_replica_draft_tokens_total"), "{{replica}} effective"),
            _gauge("peagle_replica_depth_planned", "{{replica}} planned"),
        ),
        none=NO_DRAFTS,
    ),
    Panel(
        "Changes of K by cause",
        f"Changes of K for a range of batch sizes, by cause. Probes come in pairs. {WHERE_ADAPTIVE}",
        units.Short,
        (
            Query(
                f"sum by (cause) (increase(peagle_replica_depth_changes_total{{{OF_REPLICA}}}[{WINDOW}]))", "{{cause}}"
            ),
        ),
        Shape.STACK,
        none=NOT_ADAPTIVE,
        names=tuple(sorted(CAUSE.values)),
    ),
    Panel(
        "What governs",
        "Replicas by what controls their table: the rule, a probe, an operator, or the guard's fallback.",
        units.Short,
        (Query(f"sum by (mode) (peagle_replica_depth_mode{{{OF_REPLICA}}})", "{{mode}}"),),
        Shape.STACK,
        none="Speculation is off.",
        names=tuple(sorted(MODE.values)),
    ),
    Panel(
        "Age of the plan",
        f"Time since the Router last confirmed it. Without the Router, a replica keeps its last plan. {WHERE_ADAPTIVE}",
        units.Seconds,
        (_gauge("peagle_replica_plan_age_seconds"),),
        limits=((10, WARN), (60, BAD)),
        none=NOT_ADAPTIVE,
    ),
    Panel(
        "Version of the table",
        "Increases with every change: the version of the Router's plan, and of the table that the engine applies.",
        units.Short,
        (
            _gauge("peagle_replica_plan_version", "{{replica}} planned"),
            _gauge("peagle_replica_depth_version", "{{replica}} applied"),
        ),
        none="Speculation is off.",
    ),
    Panel(
        "Fallbacks",
        f"Times that the guard fell back to the configured K because predictions failed. {WHERE_ADAPTIVE}",
        units.Short,
        (
            Query(
                _or_none_counted(
                    f"sum by ({_BY_REPLICA}) (increase(peagle_replica_depth_fallbacks_total{{{OF_REPLICA}}}[{WINDOW}]))"
                ),
                "{{model}} {{replica}}",
            ),
        ),
        limits=((1, BAD),),
        none=NOT_ADAPTIVE,
    ),
    Panel(
        "Assumed step times",
        "Replicas whose initial step times are those of another target or device because their own is unknown; the "
        f"Router's log says which, and the fix. Measurements replace them. {WHERE_ADAPTIVE}",
        units.Short,
        (Query(f"sum by (model, part) (peagle_replica_depth_prior_assumed{{{OF_REPLICA}}})", "{{model}} {{part}}"),),
        limits=((1, WARN),),
        none=NOT_ADAPTIVE,
    ),
)

WORTH = (
    Panel(
        "Goodput and its prediction",
        f"Tokens per second of the whole batch at the batch sizes with the most load. {WHERE_ADAPTIVE}",
        units.Short,
        (
            _gauge("peagle_replica_predicted_tokens_per_second", "{{replica}} predicted"),
            _gauge("peagle_replica_measured_tokens_per_second", "{{replica}} measured"),
        ),
        none=NOT_ADAPTIVE,
    ),
    Panel(
        "Goodput over its prediction",
        "Recent ratio; the guard acts if it stays below 0.97. During the guard's fallback, from the last report. "
        f"{WHERE_ADAPTIVE}",
        units.PercentUnit,
        (
            Query(
                f"peagle_replica_goodput_ratio{{{OF_REPLICA}}} or "
                f"peagle_replica_measured_tokens_per_second{{{OF_REPLICA}}} / "
                f"peagle_replica_predicted_tokens_per_second{{{OF_REPLICA}}}",
                "{{model}} {{replica}}",
            ),
        ),
        none=NOT_ADAPTIVE,
    ),
    Panel(
        "Speed-up over K = 0",
        "Speedup by speculation, which the rule estimates from step times and acceptance, with its 95 % interval; "
        f"K = 0 itself is 1. {WHERE_ADAPTIVE}",
        "suffix:x",
        (
            _gauge("peagle_replica_speedup_ratio"),
            _gauge("peagle_replica_speedup_low_ratio", "{{model}} {{replica}} low"),
            _gauge("peagle_replica_speedup_high_ratio", "{{model}} {{replica}} high"),
        ),
        none=NOT_ADAPTIVE,
    ),
)

BOARD = Board(
    "peagle-speculation",
    "peagle / Speculation",
    "Results of drafting, chosen K and its reasons, and accuracy of the predictions.",
    (Row("Yield", YIELD), Row("Depth", DEPTH), Row("Worth", WORTH)),
)
