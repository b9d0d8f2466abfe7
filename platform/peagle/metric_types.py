"""Metric declarations: type, unit and labels, and what bounds the labels."""

from dataclasses import dataclass
from enum import StrEnum

OTHER = "other"
"""Label value that replaces an undeclared value."""


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
