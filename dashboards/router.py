"""Dispatch of requests, its reasons, and queues."""

from grafana_foundation_sdk.models import units

from dashboards.boards import OF_MODEL, OF_REPLICA, SPACE, Board
from dashboards.panels import Panel, Query, Row, Shape
from dashboards.promql import quantile, rate

_LEFT = ', outcome="left"'
_IN_ENGINES = f"sum(peagle_replica_running_requests{{{OF_MODEL}}}) + sum(peagle_replica_waiting_requests{{{OF_MODEL}}})"

LOAD = (
    Panel(
        "Requests running, by replica",
        "Equal lines mean that load is balanced.",
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
        "A replica with fewer tokens at equal load is slow.",
        units.Short,
        (Query(rate("peagle_replica_generation_tokens_total", OF_REPLICA, "model, replica"), "{{model}} {{replica}}"),),
    ),
)

DISPATCH = (
    Panel(
        "Dispatch by reason",
        "Why a replica was chosen: by policy, such as soonest; home of the prefix; least in flight, if reports were "
        "stale; queued, if all were full; turn, if the request took the place found for another API key's request. "
        "`wait-` is a request that no replica could take yet.",
        units.RequestsPerSecond,
        (Query(rate("peagle_dispatch_decisions_total", OF_MODEL, "reason"), "{{reason}}"),),
        Shape.STACK,
        12,
        none="One replica: nothing to dispatch.",
    ),
    Panel(
        "Requests in the platform and in engines",
        "Open at the API, and running or queued in engines; the difference waits in dispatch, in Serve's queue.",
        units.Short,
        (
            Query(f"sum(peagle_requests_open{{{OF_MODEL}}})", "open"),
            Query(_IN_ENGINES, "in engines"),
        ),
        width=12,
    ),
    Panel(
        "Shed and failed",
        "Requests refused because no replica had capacity, and requests that ended with an error.",
        units.RequestsPerSecond,
        (
            Query(rate("peagle_requests_total", f'{OF_MODEL}, outcome="shed"'), "{{model}} shed"),
            Query(rate("peagle_requests_total", f'{OF_MODEL}, outcome="failed"'), "{{model}} failed"),
        ),
        width=6,
    ),
    Panel(
        "Retries",
        "Requests retried on another replica because theirs was lost before the first token.",
        units.RequestsPerSecond,
        (Query(rate("peagle_request_retries_total", OF_MODEL), "{{model}}"),),
        width=6,
        none="No request was retried.",
    ),
    Panel(
        "Engine stalls",
        "Times in five minutes that an engine stopped responding, so that it got no new requests.",
        units.Short,
        (
            Query(
                f"sum by (model, replica) (increase(peagle_replica_engine_stalls_total{{{OF_REPLICA}}}[5m]))",
                "{{model}} {{replica}}",
            ),
        ),
        width=6,
    ),
    Panel(
        "Clients that disconnected",
        "Share of requests whose client closed the connection before the end.",
        units.PercentUnit,
        (
            Query(
                f"{rate('peagle_requests_total', OF_MODEL + _LEFT)} / {rate('peagle_requests_total', OF_MODEL)}",
                "{{model}}",
            ),
        ),
        width=6,
    ),
)

HTTP = (
    Panel(
        "Answers by route and status",
        "Of all ingress processes.",
        units.RequestsPerSecond,
        (Query(rate("peagle_http_requests_total", SPACE, "route, status"), "{{route}} {{status}}"),),
        Shape.STACK,
        none="No HTTP requests in this time range.",
    ),
    Panel(
        "Time to answer, by route",
        "p95 to the last byte.",
        units.Seconds,
        (Query(quantile(0.95, "peagle_http_request_seconds", SPACE, "route"), "{{route}}"),),
        none="No HTTP requests in this time range.",
    ),
    Panel(
        "Requests by ingress process",
        "Each is one event loop; a busy loop delays every token.",
        units.RequestsPerSecond,
        (Query(rate("peagle_http_requests_total", SPACE, "ingress"), "{{ingress}}"),),
        none="No HTTP requests in this time range.",
    ),
    Panel(
        "Stalls of ingress processes",
        "Longest delay of an event loop's timer, rounded up to the next bucket bound. No tokens are relayed meanwhile.",
        units.Seconds,
        (Query(quantile(1, "peagle_ingress_loop_stall_seconds", SPACE, "ingress"), "{{ingress}}"),),
        width=12,
        none="No HTTP requests in this time range.",
    ),
    Panel(
        "Stalls of replicas",
        "Longest delay of a timer in a replica's event loop, rounded up to the next bucket bound.",
        units.Seconds,
        (Query(quantile(1, "peagle_replica_loop_stall_seconds", SPACE, "replica"), "{{replica}}"),),
        width=12,
    ),
)

CLIENTS = (
    Panel(
        "Tokens by client",
        "Prompt and output tokens of finished requests, by API key name.",
        units.Short,
        (Query(rate("peagle_client_tokens_total", f'{OF_MODEL}, kind=~"prompt|output"', "client"), "{{client}}"),),
        Shape.STACK,
        12,
        none="No keys file, or there were no requests with a key.",
    ),
    Panel(
        "Refused by limit",
        "Requests over a limit of their API key, answered with 429.",
        units.RequestsPerSecond,
        (Query(rate("peagle_client_refusals_total", SPACE, "client, limit"), "{{client}} {{limit}}"),),
        Shape.STACK,
        12,
        none="No key reached a limit.",
    ),
)

BOARD = Board(
    "peagle-router",
    "peagle / Router",
    "Dispatch of requests, its reasons, and queues.",
    (Row("Load", LOAD), Row("Dispatch", DISPATCH), Row("HTTP", HTTP), Row("Clients", CLIENTS)),
)
