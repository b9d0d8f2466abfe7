"""What a metric's declaration says: its type, unit, labels, and what keeps those bounded."""

from dataclasses import dataclass
from enum import StrEnum

OTHER = "other"
"""What a label says in place of a value that it is not declared to have."""


class Kind(StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(StrEnum):
    """What a metric counts or measures; names of seconds and ratios end with their unit."""

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
    """A label: what keeps its values few, and those values where they are known beforehand."""

    name: str
    bound: str
    values: frozenset[str] = frozenset()

    def bounded(self, value: str) -> str:
        return value if not self.values or value in self.values else OTHER


@dataclass(frozen=True, slots=True)
class Metric:
    """One declaration.

    Attributes:
        name: Without the suffix that Prometheus gives a counter's or a histogram's series.
        text: What it says, in a sentence.
        field: Where a replica's answer holds it; None for what is not a replica's.
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
        """The names that a query may use."""
        match self.kind:
            case Kind.COUNTER:
                return (f"{self.name}_total",)
            case Kind.HISTOGRAM:
                return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
            case _:
                return (self.name,)

    def label_values(self, *values: str) -> list[str]:
        """`values`, in the order of the labels, each one that its label may have."""
        return [label.bounded(value) for label, value in zip(self.labels, values, strict=True)]
