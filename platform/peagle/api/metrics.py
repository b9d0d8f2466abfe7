"""`/metrics`: this process's HTTP requests, and what every replica said about itself when it was asked for this scrape.

vLLM's own series are not repeated here: Ray's metrics agent on each node exports them as `ray_vllm_*`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# From a probe's answer to a long generation.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class ReplicaSeries:
    """A series for each replica: `field` of its status as the metric `name`."""

    field: str
    name: str
    family: type[GaugeMetricFamily] | type[CounterMetricFamily]
    text: str


REPLICA_SERIES = (
    ReplicaSeries("running_requests", "peagle_replica_running_requests", GaugeMetricFamily, "Requests in the batch."),
    ReplicaSeries("waiting_requests", "peagle_replica_waiting_requests", GaugeMetricFamily, "Requests in the queue."),
    ReplicaSeries("kv_usage_ratio", "peagle_replica_kv_usage_ratio", GaugeMetricFamily, "KV cache in use, 0 to 1."),
    ReplicaSeries("depth_version", "peagle_replica_depth_version", GaugeMetricFamily, "Version of the depth table."),
    ReplicaSeries("plan_age_s", "peagle_replica_plan_age_seconds", GaugeMetricFamily, "Since the Router's last plan."),
    ReplicaSeries("depth_effective", "peagle_replica_depth_effective", GaugeMetricFamily, "Draft tokens per draft."),
    ReplicaSeries(
        "acceptance_length", "peagle_replica_acceptance_length", GaugeMetricFamily, "Tokens per verification."
    ),
    ReplicaSeries("drafts", "peagle_replica_drafts", CounterMetricFamily, "Drafts verified."),
    ReplicaSeries(
        "requested", "peagle_replica_requested_draft_tokens", CounterMetricFamily, "Draft tokens at the K asked for."
    ),
    ReplicaSeries("drafted", "peagle_replica_draft_tokens", CounterMetricFamily, "Draft tokens verified."),
    ReplicaSeries("accepted", "peagle_replica_accepted_tokens", CounterMetricFamily, "Draft tokens accepted."),
    ReplicaSeries("generation_tokens", "peagle_replica_generation_tokens", CounterMetricFamily, "Tokens generated."),
)


POSITION_SERIES = (
    ReplicaSeries(
        "drafted_by_position", "peagle_replica_position_draft_tokens", CounterMetricFamily, "Verified, by position."
    ),
    ReplicaSeries(
        "accepted_by_position", "peagle_replica_position_accepted_tokens", CounterMetricFamily, "Accepted, by position."
    ),
)


class HttpMetrics:
    """What this process did for clients. Routes are templates and models are those served, so no client adds labels."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "peagle_http_requests",
            "Requests answered; status 499 is a client that left.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "peagle_http_request_seconds",
            "Time until the last byte of the answer.",
            ("method", "route"),
            buckets=SECONDS,
            registry=self.registry,
        )

        self._retries = Counter(
            "peagle_request_retries",
            "Requests sent to another replica, as theirs was lost before its first token.",
            ("model",),
            registry=self.registry,
        )

    def retried(self, model: str) -> None:
        self._retries.labels(model).inc()

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)


@cache
def http_metrics() -> HttpMetrics:
    """This process's counters; made on first use, since locks do not travel to a replica."""
    return HttpMetrics()


class _Fleet(Collector):
    def __init__(
        self, replicas: Mapping[str, Iterable[Mapping[str, Any]]], decisions: Mapping[str, Mapping[str, int]]
    ) -> None:
        self._decisions = decisions
        self._rows = [(model, row) for model, rows in replicas.items() for row in rows]
        self._counts = {model: sum(1 for name, _ in self._rows if name == model) for model in replicas}

    def collect(self) -> Iterator[Metric]:
        answering = GaugeMetricFamily(
            "peagle_replicas_answering", "Replicas that answered this scrape.", labels=["model"]
        )
        for model, count in self._counts.items():
            answering.add_metric([model], count)
        yield answering
        decided = CounterMetricFamily(
            "peagle_dispatch_decisions",
            "Requests sent to a replica, by why it was that one.",
            labels=["model", "reason"],
        )
        for model, counts in self._decisions.items():
            for reason, count in counts.items():
                decided.add_metric([model, reason], count)
        yield decided
        for series in REPLICA_SERIES:
            family = series.family(series.name, series.text, labels=["model", "replica"])
            for model, row in self._rows:
                value = row.get(series.field)
                if value is not None:
                    family.add_metric([model, str(row["id"])], float(value))
            yield family
        for series in POSITION_SERIES:
            family = series.family(series.name, series.text, labels=["model", "replica", "position"])
            for model, row in self._rows:
                for position, value in enumerate(row.get(series.field) or (), start=1):
                    family.add_metric([model, str(row["id"]), str(position)], float(value))
            yield family


def exposition(
    replicas: Mapping[str, Iterable[Mapping[str, Any]]], decisions: Mapping[str, Mapping[str, int]]
) -> bytes:
    """Prometheus text for replicas' statuses and dispatchers' decisions, by model, and this process's requests."""
    fleet = CollectorRegistry()
    fleet.register(_Fleet(replicas, decisions))
    return generate_latest(fleet) + generate_latest(http_metrics().registry)
