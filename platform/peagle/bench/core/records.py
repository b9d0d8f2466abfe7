"""Records of measurements of engines and servers: runs and their keys. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import WrapSerializer

from peagle.bench.core.closed_loop import Arrivals
from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts

NONE, EAGLE3, PEAGLE = "none", "eagle3", "p-eagle"
FIXED = "p-eagle fixed"
"""Name of P-EAGLE in an engine with a fixed K."""


class Named(Protocol):
    """A variant with a name."""

    @property
    def name(self) -> str: ...


Variant = TypeVar("Variant", bound=Named)
Answer = TypeVar("Answer", bound=Arrivals)


@dataclass(frozen=True, slots=True)
class PassKey:
    """Key of one measured pass: prompt set, variant name, concurrency and repeat; counted from 0."""

    repeat: int
    concurrency: int
    prompt_set: int
    variant: str


@dataclass(frozen=True, slots=True)
class Run(Generic[Answer]):
    """Result of one pass, or of all passes of a repeat: wall-clock seconds, and an answer per prompt.

    For an engine, also the steps that generated tokens, and the changes of K at the pass's concurrency, including
    trials. For servers started here, also CPU seconds by role, including the client's.
    """

    seconds: float
    steps: int = 0
    traces: tuple[Answer, ...] = ()
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    counts: DraftCounts = NO_DRAFTS
    depth_changes: int = 0

    def __add__(self, later: "Run[Answer]") -> "Run[Answer]":
        roles = dict.fromkeys([*self.cpu_s, *later.cpu_s])
        return Run(
            self.seconds + later.seconds,
            self.steps + later.steps,
            self.traces + later.traces,
            {role: self.cpu_s.get(role, 0.0) + later.cpu_s.get(role, 0.0) for role in roles},
            self.counts + later.counts,
            self.depth_changes + later.depth_changes,
        )

    @property
    def output_tokens(self) -> int:
        return sum(trace.token_count for trace in self.traces)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


Runs = Mapping[tuple[Variant, int], Sequence[Run[Answer]]]
"""One run per repeat, by cell, which is a variant at a concurrency."""


def without(*fields: str) -> WrapSerializer:
    """Return an annotation that omits `fields`, which a record's kind does not have, from the journal."""

    def write(record: Any, plain: Any) -> dict[str, Any]:
        return {name: value for name, value in plain(record).items() if name not in fields}

    return WrapSerializer(write)
