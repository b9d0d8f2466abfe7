"""Health, speed and cost of the fleet."""

from grafana_foundation_sdk.models import units

from dashboards.boards import OF_MODEL, Board
from dashboards.panels import NO_DRAFTS, NOT_ADAPTIVE, WHERE_ADAPTIVE, Panel, Query, Row, Shape
from dashboards.promql import WINDOW, mean, quantile, rate, total_rate
from peagle.metrics import CLIENT_ERROR, FAILED, LEFT, OK, SHED, STATE
from peagle.palette import BAD, FINE, WARN

_REQUESTS = total_rate("peagle_requests_total", OF_MODEL)
_TOKENS = total_rate("peagle_replica_generation_tokens_total", OF_MODEL)
_COST = "sum{by} (peagle_replica_devices{{{where}}}) * $price / 3600 * 1e6 / {tokens}"


def _share(outcome: str) -> str:
    """Share of requests with an outcome: 0 for an idle fleet, no value without scrapes."""
    where = f'{OF_MODEL}, outcome="{outcome}"'
    return f"({total_rate('peagle_requests_total', where)} or vector(0)) / ({_REQUESTS} > 0) or {_REQUESTS}"


def _quantiles(histogram: str) -> tuple[Query, ...]:
    shares = {"p50": 0.5, "p95": 0.95}
    return tuple(Query(quantile(share, histogram, OF_MODEL), f"{{{{model}}}} {name}") for name, share in shares.items())


HEALTHY = (
    Panel(
        "Replicas answering",
        "Replicas that answered the last scrape; at 0, no model is served.",
        units.Short,
        (Query(f"sum(peagle_replicas_answering{{{OF_MODEL}}})"),),
        Shape.STAT,
        6,
        ((1, FINE),),
        base=BAD,
        none="Prometheus does not scrape the server.",
    ),
    Panel(
        "Requests failed",
        "Share of requests that ended with a server error.",
        units.PercentUnit,
        (Query(_share("failed")),),
        Shape.STAT,
        6,
        ((0.001, WARN), (0.01, BAD)),
    ),
    Panel(
        "Requests shed",
        "Share of requests refused with 429 because no replica had capacity.",
        units.PercentUnit,
        (Query(_share("shed")),),
        Shape.STAT,
        6,
        ((0.001, WARN), (0.05, BAD)),
    ),
    Panel(
        "Alerts firing",
        "Firing alerts of the platform; their annotations describe the fix.",
        units.Short,
        (Query('count(ALERTS{alertname=~"Peagle.*", alertstate="firing"}) or vector(0)'),),
        Shape.STAT,
        6,
        ((1, BAD),),
    ),
    Panel(
        "Requests by outcome",
        "How model requests ended. `left` means that the client disconnected first.",
        units.RequestsPerSecond,
        (Query(rate("peagle_requests_total", OF_MODEL, "outcome"), "{{outcome}}"),),
        Shape.STACK,
        12,
        names=(LEFT, CLIENT_ERROR, OK, SHED, FAILED),
    ),
    Panel(
        "Replicas by state",
        "Each model's replicas by Ray Serve state.",
        units.Short,
        (Query(f"sum by (model, state) (peagle_replicas{{{OF_MODEL}}})", "{{model}} {{state}}"),),
        Shape.STACK,
        12,
        none="Prometheus does not scrape the server.",
        names=tuple(sorted(STATE.values)),
    ),
)

FAST = (
    Panel(
        "Time to first token",
        "As seen by streaming clients, including the platform's own share.",
        units.Seconds,
        _quantiles("peagle_request_ttft_seconds"),
    ),
    Panel(
        "Time per output token",
        "Mean of each request, after its first token; speculation reduces it.",
        units.Seconds,
        _quantiles("peagle_replica_tpot_seconds"),
    ),
    Panel(
        "Whole requests",
        "From arrival to the last byte.",
        units.Seconds,
        _quantiles("peagle_request_e2e_seconds"),
    ),
    Panel(
        "The platform's own share",
        "Mean time of a request outside the engine: in the API, in dispatch, on the wire, without the engine's queue. "
        "First tokens and outputs are measured on streams at the API but on all requests in the engine, so these "
        "lines are valid if clients stream. Between outputs it includes the delay of the engine's `stream_interval`.",
        units.Seconds,
        (
            Query(
                f"{mean('peagle_request_ttft_seconds', OF_MODEL)} - {mean('peagle_replica_ttft_seconds', OF_MODEL)}",
                "{{model}} first token",
            ),
            Query(
                f"{mean('peagle_request_e2e_seconds', OF_MODEL)} - {mean('peagle_replica_e2e_seconds', OF_MODEL)}",
                "{{model}} whole request",
            ),
            Query(
                f"{mean('peagle_request_itl_seconds', OF_MODEL)} - {mean('peagle_replica_itl_seconds', OF_MODEL)}",
                "{{model}} between outputs",
            ),
        ),
        lowest=None,
        width=12,
    ),
    Panel(
        "Time in the engine's queue",
        "Wait before the first step. Growing queues mean too few replicas.",
        units.Seconds,
        _quantiles("peagle_replica_queue_seconds"),
        width=12,
    ),
)

WORTH = (
    Panel("Tokens per second", "Generated, by all replicas.", units.Short, (Query(_TOKENS),), Shape.STAT, 6),
    Panel(
        "Speed-up",
        "Estimated tokens per second divided by those at K = 0, weighted by each replica's tokens. It is the depth "
        f"rule's own estimate, at the batch sizes with the most load. {WHERE_ADAPTIVE}",
        "suffix:x",
        (
            Query(
                f"sum(peagle_replica_speedup_ratio{{{OF_MODEL}}} * on (namespace, model, replica) "
                f"rate(peagle_replica_generation_tokens_total{{{OF_MODEL}}}[{WINDOW}])) / "
                f"sum((peagle_replica_speedup_ratio{{{OF_MODEL}}} > bool 0) * on (namespace, model, replica) "
                f"rate(peagle_replica_generation_tokens_total{{{OF_MODEL}}}[{WINDOW}]))"
            ),
        ),
        Shape.STAT,
        6,
        none=NOT_ADAPTIVE,
    ),
    Panel(
        "Cost per million tokens",
        "Device-hours of all replicas at the price given above, divided by their generated tokens.",
        "currencyUSD",
        (Query(_COST.format(by="", where=OF_MODEL, tokens=f"({_TOKENS} > 0)")),),
        Shape.STAT,
        6,
    ),
    Panel(
        "Acceptance length",
        "Recent tokens per verification.",
        units.Short,
        (
            Query(
                f"1 + {total_rate('peagle_replica_accepted_tokens_total', OF_MODEL)} / "
                f"({total_rate('peagle_replica_drafts_total', OF_MODEL)} > 0)"
            ),
        ),
        Shape.STAT,
        6,
        lowest=1,
        none=NO_DRAFTS,
    ),
    Panel(
        "Tokens per second by model",
        "Tokens in are prompts, tokens out are answers.",
        units.Short,
        (
            Query(rate("peagle_replica_generation_tokens_total", OF_MODEL), "{{model}} out"),
            Query(rate("peagle_replica_prompt_tokens_total", OF_MODEL), "{{model}} in"),
        ),
    ),
    Panel(
        "Cost per million tokens by model",
        "As above, by model; an idle replica costs as much as a busy one.",
        "currencyUSD",
        (
            Query(
                _COST.format(
                    by=" by (model)",
                    where=OF_MODEL,
                    tokens=f"({rate('peagle_replica_generation_tokens_total', OF_MODEL)} > 0)",
                ),
                "{{model}}",
            ),
        ),
    ),
    Panel(
        "Speed-up by model",
        "The estimate for each model's replicas; below 1 speculation costs more than it saves, and K goes to 0. "
        f"{WHERE_ADAPTIVE}",
        "suffix:x",
        (Query(f"avg by (model) (peagle_replica_speedup_ratio{{{OF_MODEL}}})", "{{model}}"),),
        none=NOT_ADAPTIVE,
    ),
)

BOARD = Board(
    "peagle-overview",
    "peagle / Overview",
    "Health, speed and cost of the fleet.",
    (Row("Healthy?", HEALTHY), Row("Fast?", FAST), Row("Worth it?", WORTH)),
    ("namespace", "model", "price"),
)
