"""What the rule hands out: a table of depths, and for every change what it was made of."""

from dataclasses import dataclass, field
from enum import StrEnum

from peagle.router.depth.settings import StandingLimits
from peagle.router.snapshot import DepthTable


class Mode(StrEnum):
    """What governs the table."""

    ADAPTIVE = "adaptive"
    PROBING = "probing"
    PAUSED = "paused"
    PINNED = "pinned"
    FALLBACK = "fallback"


class Cause(StrEnum):
    """Why a depth changed."""

    GAIN = "gain"
    LATENCY = "latency"
    LOAD = "load"
    PROBE = "probe"
    PROBE_ADOPTED = "probe_adopted"
    PROBE_REVERTED = "probe_reverted"
    LIMITS = "limits"
    PIN = "pin"
    GUARD = "guard"
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class DepthInputs:
    """What a change was decided on.

    Attributes:
        survival: Estimated probability that the first j + 1 drafts are all right, at index j.
        evidence_drafts: Drafts that this rests on, after forgetting.
        dispersion: Variance of reports over that of independent drafts.
        delivered_ratio: Share of accepted drafts that reach a client.
        step_s: Predicted seconds of a step, before and after the change.
        tokens_per_s: Predicted tokens/s of the whole batch while it decodes, before and after.
        prompt_s: Seconds that go to prompts for each output token, before and after.
        gain_ratio: Of the two, prompts included: 0.1 is a tenth more.
        gain_sd: Standard deviation of that.
        measured_tokens_per_s: Of the last report at these batch sizes; None where there was none.
    """

    survival: tuple[float, ...]
    evidence_drafts: float
    dispersion: float
    delivered_ratio: float
    step_s: tuple[float, float]
    tokens_per_s: tuple[float, float]
    prompt_s: tuple[float, float]
    gain_ratio: float
    gain_sd: float
    measured_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class DepthChange:
    """One change of K for batch sizes `batch_first` to `batch_last`, at `at_s` on the caller's clock."""

    at_s: float
    version: int
    batch_first: int
    batch_last: int
    depth_before: int
    depth_after: int
    cause: Cause
    detail: str
    inputs: DepthInputs

    def __str__(self) -> str:
        batch = f"{self.batch_first}-{self.batch_last}" if self.batch_last > self.batch_first else f"{self.batch_first}"
        return f"K {self.depth_before} -> {self.depth_after} at batch {batch}: {self.detail}"


@dataclass(frozen=True, slots=True)
class DepthPlan:
    """K for each batch size, with a version that rises with every change of it.

    Attributes:
        table: What the engine applies.
        mode: What governs it.
        reason: Why it is as it is, in a sentence for an operator.
        changes: What this decision changed; empty where it left the table alone.
        standing: What operators had decided.
        untried: While a K is tried, the depths without that trial; else None. A replica that hears no more of the
            trial goes back to them.
    """

    table: DepthTable
    mode: Mode
    reason: str
    changes: tuple[DepthChange, ...] = ()
    standing: StandingLimits = field(default_factory=StandingLimits)
    untried: tuple[int, ...] | None = None
