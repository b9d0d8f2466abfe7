"""Metric declarations: type, unit and labels, and what bounds the labels."""

from dataclasses import dataclass
from enum import StrEnum

OTHER = "other"
"""Label value that replaces an undeclared value."""

# From a health probe to a long generation.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# From one step of a small model to a stall that a reader notices.
TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5)
# From a step that starts at once to a queue behind long answers.
QUEUE_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, *SECONDS)


class Kind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(StrEnum):
    """Unit of a metric; names of seconds and ratios end with it."""

    SECONDS = "seconds"
    RATIO = "ratio"
    TOKENS = "tokens"
    TOKENS_PER_SECOND = "tokens_per_second"
    REQUESTS = "requests"
    REPLICAS = "replicas"
    DEVICES = "devices"
    EVENTS = "events"
    VERSION = "version"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Label:
    """A label: what bounds its values, and the values if they are known in advance."""

    name: str
    bound: str
    values: frozenset[str] = frozenset()

    def bounded(self, value: str) -> str:
        return value if not self.values or value in self.values else OTHER


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration.

    Attributes:
        name: Name without the suffix that Prometheus adds to the series of a counter or a histogram.
        text: Help text, as a sentence.
        field: Key in a replica's answer; None if the metric is not a replica's.
        buckets: Upper bounds of a histogram's buckets, without infinity.
    """

    name: str
    kind: Kind
    unit: Unit
    labels: tuple[Label, ...]
    text: str
    field: str | None = None
    buckets: tuple[float, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """Series names that a query may use."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.name}_total",)
            case Kind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
            case _:
                return (self.name,)

    def label_values(self, *values: str) -> list[str]:
        """Return `values`, in the order of the labels, with undeclared values replaced."""
        return [label.bounded(value) for label, value in zip(self.labels, values, strict=True)]


def counter(name: str, unit: Unit, labels: tuple[Label, ...], text: str, field: str | None = None) -> Metric:
    return Metric(name, Kind.COUNTER, unit, labels, text, field)


def gauge(name: str, unit: Unit, labels: tuple[Label, ...], text: str, field: str | None = None) -> Metric:
    return Metric(name, Kind.GAUGE, unit, labels, text, field)


def seconds(
    name: str,
    labels: tuple[Label, ...],
    text: str,
    field: str | None = None,
    buckets: tuple[float, ...] = SECONDS,
) -> Metric:
    return Metric(f"{name}_seconds", Kind.HISTOGRAM, Unit.SECONDS, labels, text, field, buckets)
