"""What is measured of engines and servers alike: a run, and what names it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from pydantic import WrapSerializer

from peagle.bench.core.closed_loop import Arrivals
from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts

NONE, EAGLE3, PEAGLE = "none", "eagle3", "p-eagle"
FIXED = "p-eagle fixed"
"""P-EAGLE in an engine whose K cannot change."""


class Named(Protocol):
    """What takes turns with others of its kind."""

    @property
    def name(self) -> str: ...


Variant = TypeVar("Variant", bound=Named)
Answer = TypeVar("Answer", bound=Arrivals)


@dataclass(frozen=True, slots=True)
class PassKey:
    """One measured pass: a prompt set through a variant (its name), at a concurrency, in a repeat; counted from 0."""

    repeat: int
    concurrency: int
    prompt_set: int
    variant: str


@dataclass(frozen=True, slots=True)
class Run(Generic[Answer]):
    """What one pass came to, or all those of a repeat together: wall-clock seconds, and an answer for each prompt.

    Of an engine also the steps that gave tokens, and the changes of K at the pass's concurrency, trials included. Of
    servers started here also CPU seconds by role, the client's too.
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
"""By cell, which is a variant at a concurrency, one run for each repeat."""


def without(*fields: str) -> WrapSerializer:
    """Annotate a record with this to leave `fields`, which its kind does not have, out of the journal."""

    def write(record: Any, plain: Any) -> dict[str, Any]:
        return {name: value for name, value in plain(record).items() if name not in fields}

    return WrapSerializer(write)
