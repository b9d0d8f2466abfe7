"""Where requests go and why, and what waits."""

from grafana_foundation_sdk.models import units

from dashboards.boards import OF_MODEL, OF_REPLICA, SPACE, Board
from dashboards.panels import Panel, Query, Row, Shape
from dashboards.promql import quantile, rate

_LEFT = ', outcome="left"'
_IN_ENGINES = f"sum(peagle_replica_running_requests{{{OF_MODEL}}}) + sum(peagle_replica_waiting_requests{{{OF_MODEL}}})"

LOAD = (
    Panel(
        "Requests running, by replica",
        "In the batch. Even lines mean that load is spread.",
        units.Short,
        (Query(f"peagle_replica_running_requests{{{OF_REPLICA}}}", "{{model}} {{replica}}"),),
    ),
    Panel(
        "Requests waiting, by replica",
        "In the engine's own queue.",
        units.Short,
        (Query(f"peagle_replica_waiting_requests{{{OF_REPLICA}}}", "{{model}} {{replica}}"),),
    ),
    Panel(
        "Tokens per second, by replica",
        "A replica that stays behind at equal load is slow.",
        units.Short,
        (Query(rate("peagle_replica_generation_tokens_total", OF_REPLICA, "model, replica"), "{{model}} {{replica}}"),),
    ),
)

DISPATCH = (
    Panel(
        "Dispatch by reason",
        "Why a replica was chosen: by its policy, such as soonest; home of the prefix; least in flight, where reports "
        "were stale; queued, where all were full; turn, where it was the request's turn to have a place that was found "
        "for another API key's. `wait-` is a request that no replica could take yet.",
        units.RequestsPerSecond,
        (Query(rate("peagle_dispatch_decisions_total", OF_MODEL, "reason"), "{{reason}}"),),
        Shape.STACK,
        12,
    ),
    Panel(
        "Requests in the platform and in engines",
        "Those open at the API, and those that engines run or queue; what lies between waits in dispatch, in Serve's "
        "queue.",
        units.Short,
        (
            Query(f"sum(peagle_requests_open{{{OF_MODEL}}})", "open"),
            Query(_IN_ENGINES, "in engines"),
        ),
        width=12,
    ),
    Panel(
        "Shed and failed",
        "Requests refused because nothing could take them, and requests that ended with an error.",
        units.RequestsPerSecond,
        (
            Query(rate("peagle_requests_total", f'{OF_MODEL}, outcome="shed"'), "{{model}} shed"),
            Query(rate("peagle_requests_total", f'{OF_MODEL}, outcome="failed"'), "{{model}} failed"),
        ),
    ),
    Panel(
        "Retries",
        "Requests sent to another replica, because theirs was lost before its first token.",
        units.RequestsPerSecond,
        (Query(rate("peagle_request_retries_total", OF_MODEL), "{{model}}"),),
    ),
    Panel(
        "Engines that stall",
        "Times in five minutes that an engine gave no sign of life for unusually long, so that it got nothing new.",
        units.Short,
        (
            Query(
                f"sum by (model, replica) (increase(peagle_replica_engine_stalls_total{{{OF_REPLICA}}}[5m]))",
                "{{model}} {{replica}}",
            ),
        ),
    ),
    Panel(
        "Clients that left",
        "Share of requests whose client closed the connection before the end.",
        units.PercentUnit,
        (
            Query(
                f"{rate('peagle_requests_total', OF_MODEL + _LEFT)} / {rate('peagle_requests_total', OF_MODEL)}",
                "{{model}}",
            ),
        ),
    ),
)

HTTP = (
    Panel(
        "Answers by route and status",
        "Of every ingress process.",
        units.RequestsPerSecond,
        (Query(rate("peagle_http_requests_total", SPACE, "route, status"), "{{route}} {{status}}"),),
        Shape.STACK,
    ),
    Panel(
        "Time to answer, by route",
        "p95 until the last byte.",
        units.Seconds,
        (Query(quantile(0.95, "peagle_http_request_seconds", SPACE, "route"), "{{route}}"),),
    ),
    Panel(
        "Requests by ingress process",
        "Each is one event loop; a busy one adds to every token's delay.",
        units.RequestsPerSecond,
        (Query(rate("peagle_http_requests_total", SPACE, "ingress"), "{{ingress}}"),),
    ),
    Panel(
        "Stalls of ingress processes",
        "The longest, to the next bound: how late an event loop came to a timer. Meanwhile it relayed nothing.",
        units.Seconds,
        (Query(quantile(1, "peagle_ingress_loop_stall_seconds", SPACE, "ingress"), "{{ingress}}"),),
    ),
    Panel(
        "Stalls of replicas",
        "The longest, to the next bound: how late a replica's event loop came to a timer.",
        units.Seconds,
        (Query(quantile(1, "peagle_replica_loop_stall_seconds", SPACE, "replica"), "{{replica}}"),),
    ),
)

CLIENTS = (
    Panel(
        "Tokens by client",
        "Prompt and output tokens of requests that are over, by the name of the API key. None without a file of keys.",
        units.Short,
        (Query(rate("peagle_client_tokens_total", f'{OF_MODEL}, kind=~"prompt|output"', "client"), "{{client}}"),),
        Shape.STACK,
        12,
    ),
    Panel(
        "Refused by limit",
        "Requests beyond a limit of their API key, answered with 429.",
        units.RequestsPerSecond,
        (Query(rate("peagle_client_refusals_total", SPACE, "client, limit"), "{{client}} {{limit}}"),),
        Shape.STACK,
        12,
    ),
)

BOARD = Board(
    "peagle-router",
    "peagle / Router",
    "Where requests go and why, and what waits.",
    (Row("Load", LOAD), Row("Dispatch", DISPATCH), Row("HTTP", HTTP), Row("Clients", CLIENTS)),
)
