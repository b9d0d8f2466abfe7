"""`/metrics`: requests of every ingress process, and answers of replicas and the Router to this scrape."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import accumulate
from threading import Lock
from typing import Any, TypeVarTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from peagle import metrics
from peagle.api.reply import has_tokens
from peagle.metrics import FLEET_METRICS, INGRESS_METRICS, REPLICA_METRICS, Kind, Metric
from peagle.router.dispatch import DECISION_REASONS

Rows = Mapping[str, Iterable[Mapping[str, Any]]]
Value = tuple[str, tuple[tuple[str, str], ...], float]
"""Name, labels and value of one series."""
EVENTS_KEPT = 256
CLIENTS_NAMED = 256
"""Most API keys with their own series; later keys count together as `other`."""


@dataclass(slots=True)
class Exchange:
    """One model request in progress.

    Attributes:
        sent_s: Clock time at which its last chunk was sent.
        between: Histogram of the time between its chunks, set when the first was sent.
    """

    model: str
    ttft_s: float | None = None
    failed: bool = False
    sent_s: float | None = None
    between: Any = None

    def fail(self) -> None:
        """Record that an error was sent after the status."""
        self.failed = True

    def outcome(self, status: int) -> str:
        if self.failed or status >= 500:
            return metrics.FAILED
        if status == 499:
            return metrics.LEFT
        if status == 429:
            return metrics.SHED
        return metrics.CLIENT_ERROR if status >= 400 else metrics.OK


Told = TypeVarTuple("Told")


def _later(count: Callable[["HttpMetrics", *Told], None]) -> Callable[["HttpMetrics", *Told], None]:
    """Defer a method's calls until enough have accumulated or the values are read."""

    @wraps(count)
    def keep(self: "HttpMetrics", *event: *Told) -> None:
        self.keep(count, self, *event)

    return keep


class HttpMetrics:
    """This process's request metrics. Routes are templates and models are those served, so clients cannot add labels.

    Attributes:
        counting: Whether new requests are counted; read once per request.
    """

    def __init__(self) -> None:
        self.counting = True
        self.registry = CollectorRegistry()
        # Events waiting to be counted in batches: counting each at once would run with cold CPU caches every time.
        self._events: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._counting = Lock()  # dispatch reports its decisions from a Serve thread
        kinds = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge}
        self._of: dict[str, Any] = {}
        self._clients: set[str] = set()
        for each in INGRESS_METRICS:
            labels = each.label_names[1:]  # without the process's own name, which the scraping process adds
            if each.kind is Kind.HISTOGRAM:
                made: Any = Histogram(each.name, each.text, labels, registry=self.registry, buckets=each.buckets)
            else:
                made = kinds[each.kind](each.name, each.text, labels, registry=self.registry)
            self._of[each.name] = made

    def _at(self, metric: Metric, *values: str) -> Any:
        bounded = (label.bounded(value) for label, value in zip(metric.labels[1:], values, strict=True))
        made = self._of[metric.name]
        return made.labels(*bounded) if values else made

    def expect(self, models: Iterable[str]) -> None:
        """Start the series of these models at zero, because a rate ignores the first value of a series."""
        for model in models:
            for metric in INGRESS_METRICS:
                if metric.labels[1:] == (metrics.MODEL,):
                    self._at(metric, model)
            for outcome in metrics.OUTCOME.values:
                self._at(metrics.REQUESTS, model, outcome)
            for reason in DECISION_REASONS:
                self._at(metrics.DECISIONS, model, reason)

    @_later
    def retried(self, model: str) -> None:
        self._at(metrics.RETRIES, model).inc()

    def decided(self, model: str, reason: str) -> None:
        """Count a dispatch decision."""
        if self.counting:
            self.keep(self._decided, model, reason if reason in DECISION_REASONS else metrics.OTHER)

    @_later
    def used(self, client: str, model: str, usage: Any) -> None:
        """Count a client's finished request, and the tokens of its `Usage` if known."""
        name = self._named(client)
        self._at(metrics.CLIENT_REQUESTS, name, model).inc()
        for kind in metrics.TOKEN_KIND.values:
            self._at(metrics.CLIENT_TOKENS, name, model, kind).inc(getattr(usage, kind, 0))

    @_later
    def refused(self, client: str, limit: str) -> None:
        """Count a request refused by a limit of its client."""
        self._at(metrics.CLIENT_REFUSALS, self._named(client), limit).inc()

    def stalled(self, seconds: float) -> None:
        """Record a delay of the event loop."""
        if self.counting:
            self.keep(self._stalled, seconds)

    @_later
    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer to any route."""
        self._at(metrics.HTTP_REQUESTS, method, route, str(status)).inc()
        self._at(metrics.HTTP_REQUEST, method, route).observe(seconds)

    @_later
    def opened(self, exchange: Exchange) -> None:
        """Count a request to a model; the sender of its last byte calls `closed`."""
        self._at(metrics.REQUESTS_OPEN, exchange.model).inc()

    def sent(self, exchange: Exchange, piece: bytes, now_s: float) -> None:
        """Record the time since the answer's previous chunk; an answer that is not a stream has no first token."""
        if exchange.ttft_s is not None:
            self.keep(self._sent, exchange, piece, now_s)

    @_later
    def closed(self, exchange: Exchange, status: int, seconds: float) -> None:
        """Count the outcome of a request to a model, `seconds` after its arrival."""
        model, outcome = exchange.model, exchange.outcome(status)
        self._at(metrics.REQUESTS_OPEN, model).dec()
        self._at(metrics.REQUESTS, model, outcome).inc()
        if outcome == metrics.OK:
            self._at(metrics.REQUEST_E2E, model).observe(seconds)

    def keep(self, count: Callable[..., None], *event: Any) -> None:
        """Call `count` later; see `_later`."""
        self._events.append((count, event))
        if len(self._events) >= EVENTS_KEPT:
            self._count()

    def _count(self) -> None:
        with self._counting:
            for _ in range(len(self._events)):
                count, event = self._events.popleft()
                count(*event)

    def _decided(self, model: str, reason: str) -> None:
        self._at(metrics.DECISIONS, model, reason).inc()

    def _named(self, client: str) -> str:
        if client not in self._clients and len(self._clients) >= CLIENTS_NAMED:
            return metrics.OTHER
        self._clients.add(client)
        return client

    def _stalled(self, seconds: float) -> None:
        self._at(metrics.LOOP_STALL).observe(seconds)

    def _sent(self, exchange: Exchange, piece: bytes, now_s: float) -> None:
        # The end of a stream comes with the last token's chunk or right after it: it is not a wait for a token.
        if not has_tokens(piece):
            return
        if exchange.sent_s is None:  # as in engines, not at the end of the answer
            self._at(metrics.REQUEST_TTFT, exchange.model).observe(exchange.ttft_s)
            exchange.between = self._at(metrics.REQUEST_ITL, exchange.model)
        else:
            exchange.between.observe(now_s - exchange.sent_s)
        exchange.sent_s = now_s

    def values(self) -> list[Value]:
        """Return every series of this process, as plain values that can be pickled."""
        self._count()
        return [
            (sample.name, tuple(sample.labels.items()), sample.value)
            for family in self.registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values collected for one scrape.

    Attributes:
        ingress: Values of each ingress process, by its name.
        replicas: Answers of each model's replicas.
        estimates: Fields that the Router adds to a replica's answer, by model and replica.
        states: Number of replicas in each Ray Serve state, by model.
    """

    ingress: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    replicas: Rows = field(default_factory=dict)
    estimates: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    states: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def with_estimates(
    rows: Iterable[Mapping[str, Any]], estimates: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Add the Router's estimates, by replica id, to the replicas' answers of one model."""
    return [{**row, **estimates.get(str(row["id"]), {})} for row in rows]


class _Fleet(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._rows = {
            model: with_estimates(rows, scrape.estimates.get(model, {})) for model, rows in scrape.replicas.items()
        }

    def collect(self) -> Iterator[Family]:
        for metric in INGRESS_METRICS:
            yield self._of_ingress(metric)
        answering, states = (_family(metric) for metric in FLEET_METRICS)
        for model, rows in self._rows.items():
            answering.add_metric([model], len(rows))
        yield answering
        for model, by_state in self._scrape.states.items():
            for state, count in by_state.items():
                states.add_metric(metrics.REPLICAS.label_values(model, state), count)
        yield states
        for metric in REPLICA_METRICS:
            family = _family(metric)
            for model, rows in self._rows.items():
                for row in rows:
                    _add(family, metric, [model, str(row["id"])], row.get(str(metric.field)))
            yield family

    def _of_ingress(self, metric: Metric) -> Family:
        family: Family = _family(metric)
        for process, values in self._scrape.ingress.items():
            for name, labels, value in values:
                if name in metric.series:
                    family.add_sample(name, {"ingress": process, **dict(labels)}, value)
        return family


def _family(metric: Metric) -> Any:
    kinds = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }
    return kinds[metric.kind](metric.name, metric.text, labels=metric.label_names)


def _add(family: Any, metric: Metric, labels: list[str], value: Any) -> None:
    """Add a value of a replica's answer, if it has one."""
    if value is None:
        return
    if metric.kind is Kind.HISTOGRAM:
        bounds = [*(str(float(bound)) for bound in value["bounds"]), "+Inf"]
        counts = accumulate(value["counts"])
        family.add_metric(labels, list(zip(bounds, counts, strict=True)), value["sum"])
        return
    if len(metric.labels) == len(labels):
        family.add_metric(labels, float(value))
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value, start=1)
    for key, count in items:
        family.add_metric(metric.label_values(*labels, str(key)), float(count))


def exposition(scrape: Scrape) -> bytes:
    """Return the collected values as Prometheus text."""
    registry = CollectorRegistry()
    registry.register(_Fleet(scrape))
    return generate_latest(registry)
