"""What drafting yields, which K is chosen and why, and whether the predictions behind it hold."""

from grafana_foundation_sdk.models import units

from dashboards.boards import OF_REPLICA, Board
from dashboards.panels import WHERE_ADAPTIVE, Panel, Query, Row, Shape
from dashboards.promql import WINDOW, rate, ratio

_BY_REPLICA = "model, replica"
_POSITIONS = ("peagle_replica_position_accepted_tokens_total", "peagle_replica_position_draft_tokens_total")


def _gauge(name: str, legend: str = "{{model}} {{replica}}") -> Query:
    return Query(f"{name}{{{OF_REPLICA}}}", legend)


def _or_none_counted(expr: str) -> str:
    """`expr` by replica, 0 where nothing was counted yet: an event that did not happen is a 0, and no gap."""
    return f"{expr} or 0 * sum by ({_BY_REPLICA}) (peagle_replica_running_requests{{{OF_REPLICA}}})"


def _per_draft(name: str) -> str:
    return ratio(name, "peagle_replica_drafts_total", OF_REPLICA, _BY_REPLICA)


def _per_drafting_step(name: str) -> str:
    return ratio(name, "peagle_replica_drafting_steps_total", OF_REPLICA, _BY_REPLICA)


YIELD = (
    Panel(
        "Acceptance by position",
        "Share of drafts that were right up to a position, of those that went so deep: K may vary without bending it.",
        units.PercentUnit,
        (Query(ratio(*_POSITIONS, OF_REPLICA, "position"), "{{position}}"),),
        highest=1,
    ),
    Panel(
        "Acceptance by position, now",
        "The same over the last minutes; a steep fall means that a shallow K is enough.",
        units.PercentUnit,
        (Query(ratio(*_POSITIONS, OF_REPLICA, "position"), "{{position}}"),),
        Shape.BARS,
        highest=1,
    ),
    Panel(
        "Acceptance length",
        "Tokens for each verification, the target's own one included.",
        units.Short,
        (Query(f"1 + {_per_draft('peagle_replica_accepted_tokens_total')}", "{{model}} {{replica}}"),),
        lowest=1,
    ),
    Panel(
        "Drafted and accepted",
        "Draft tokens verified, and those of them that were right; what lies between is verification spent in vain. "
        "Of steps that only decode.",
        units.Short,
        (
            Query(rate("peagle_replica_draft_tokens_total", OF_REPLICA), "{{model}} drafted"),
            Query(rate("peagle_replica_accepted_tokens_total", OF_REPLICA), "{{model}} accepted"),
        ),
        width=12,
    ),
    Panel(
        "Waste",
        "Share of verified draft tokens that were wrong. It is no fault by itself: idle compute may be spent so.",
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
    ),
    Panel(
        "Rows drafted and verified",
        "Rows that the drafter and the target passed over, prompts among them. At a steady K the drafter has no more "
        "than 2 K for each request and step, where the target has K + 1. Rows for the largest K whatever K is are a "
        "kernel's that does not run: the engine's log says why.",
        units.Short,
        (
            Query(rate("peagle_replica_drafted_rows_total", OF_REPLICA), "{{model}} drafted"),
            Query(rate("peagle_replica_verified_rows_total", OF_REPLICA), "{{model}} verified"),
            Query(rate("peagle_replica_unfitted_rows_total", OF_REPLICA), "{{model}} drafted for the largest K"),
        ),
        width=24,
    ),
)

DEPTH = (
    Panel(
        "Steps by K",
        "Decode steps at each K over time.",
        units.Short,
        (Query(f"sum by (depth) (increase(peagle_replica_depth_steps_total{{{OF_REPLICA}}}[{WINDOW}]))", "{{depth}}"),),
        Shape.ROWS,
    ),
    Panel(
        "Steps by CUDA graph",
        "Decode steps by what they ran as on a GPU. One that is no full graph waits for the host at every layer.",
        units.Short,
        (Query(f"sum by (graph) (increase(peagle_replica_graph_steps_total{{{OF_REPLICA}}}[{WINDOW}]))", "{{graph}}"),),
        Shape.STACK,
    ),
    Panel(
        "Requested and effective K",
        "Draft tokens for each request and step that was to draft: as the table asked, and as verified. They differ "
        "only near the end of answers and where a grammar cuts drafts.",
        units.Short,
        (
            Query(_per_drafting_step("peagle_replica_requested_draft_tokens_total"), "{{replica}} requested"),
            Query(_per_drafting_step("peagle_replica_draft_tokens_total"), "{{replica}} effective"),
            _gauge("peagle_replica_depth_planned", "{{replica}} planned"),
        ),
    ),
    Panel(
        "Changes of K by cause",
        f"How often K changed for a run of batch sizes, and why. Probes come in pairs. {WHERE_ADAPTIVE}",
        units.Short,
        (
            Query(
                f"sum by (cause) (increase(peagle_replica_depth_changes_total{{{OF_REPLICA}}}[{WINDOW}]))", "{{cause}}"
            ),
        ),
        Shape.STACK,
    ),
    Panel(
        "What governs",
        "Replicas by what governs their table: the rule, a probe, an operator, or the guard's fallback.",
        units.Short,
        (Query(f"sum by (mode) (peagle_replica_depth_mode{{{OF_REPLICA}}})", "{{mode}}"),),
        Shape.STACK,
    ),
    Panel(
        "Age of the plan",
        f"Since the Router last confirmed it. A replica without the Router keeps its last plan. {WHERE_ADAPTIVE}",
        units.Seconds,
        (_gauge("peagle_replica_plan_age_seconds"),),
        limits=((10, "orange"), (60, "red")),
    ),
    Panel(
        "Version of the table",
        "Rises with every change of the plan: that of the Router's plan, and of the one that the engine applies.",
        units.Short,
        (
            _gauge("peagle_replica_plan_version", "{{replica}} planned"),
            _gauge("peagle_replica_depth_version", "{{replica}} applied"),
        ),
    ),
    Panel(
        "Fallbacks",
        f"Times that the guard went back to the configured K because predictions did not hold. {WHERE_ADAPTIVE}",
        units.Short,
        (
            Query(
                _or_none_counted(
                    f"sum by ({_BY_REPLICA}) (increase(peagle_replica_depth_fallbacks_total{{{OF_REPLICA}}}[{WINDOW}]))"
                ),
                "{{model}} {{replica}}",
            ),
        ),
        limits=((1, "red"),),
    ),
    Panel(
        "Stand-ins in the first guess",
        "Replicas whose first guess of step times is another target's or device's, as their own is not known; the "
        f"Router's log says which and the fix. What is measured replaces it. {WHERE_ADAPTIVE}",
        units.Short,
        (Query(f"sum by (model, part) (peagle_replica_depth_prior_assumed{{{OF_REPLICA}}})", "{{model}} {{part}}"),),
        limits=((1, "orange"),),
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
    ),
    Panel(
        "Goodput over its prediction",
        "Lately; the guard acts when it stays under 0.97. While the guard's fallback holds, of the last report. "
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
    ),
    Panel(
        "Speed-up over K = 0",
        "What speculation gains, as the rule estimates it from step times and acceptance, and its interval of 95 %; "
        f"K = 0 itself is 1. {WHERE_ADAPTIVE}",
        "suffix:x",
        (
            _gauge("peagle_replica_speedup_ratio"),
            _gauge("peagle_replica_speedup_low_ratio", "{{model}} {{replica}} low"),
            _gauge("peagle_replica_speedup_high_ratio", "{{model}} {{replica}} high"),
        ),
    ),
)

BOARD = Board(
    "peagle-speculation",
    "peagle / Speculation",
    "What drafting yields, which K is chosen and why, and whether the predictions behind it hold.",
    (Row("Yield", YIELD), Row("Depth", DEPTH), Row("Worth", WORTH)),
)
