"""The rule's output: a table of depths, and a record of each change with its inputs."""

from dataclasses import dataclass, field
from enum import StrEnum

from peagle.router.depth.settings import StandingLimits
from peagle.router.snapshot import DepthTable


class Mode(StrEnum):
    """What controls the table."""

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
    """Inputs of one change.

    Attributes:
        survival: Estimated probability that the first j + 1 drafts are all accepted, at index j.
        evidence_drafts: Drafts behind this estimate, after forgetting.
        dispersion: Variance of reports over that of independent drafts.
        delivered_ratio: Share of accepted drafts that reach a client.
        step_s: Predicted seconds of a step, before and after the change.
        tokens_per_s: Predicted decode tokens/s of the whole batch, before and after.
        prompt_s: Seconds spent on prompts for each output token, before and after.
        gain_ratio: Predicted relative gain in tokens/s, prompts included: 0.1 means 10 % more.
        gain_sd: Standard deviation of `gain_ratio`.
        measured_tokens_per_s: From the last report at these batch sizes; None without such a report.
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
    """A change of K for batch sizes `batch_first` to `batch_last`, at `at_s` on the caller's clock."""

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
    """K for each batch size. The version rises with every change.

    Attributes:
        table: The table that the engine applies.
        mode: What controls the table.
        reason: Explanation for an operator, in one sentence.
        changes: Changes made by this decision; empty if the table stayed the same.
        standing: The operators' limits at that time.
        untried: During a trial, the depths without it; otherwise None. A replica that loses contact during a trial
            returns to these depths.
    """

    table: DepthTable
    mode: Mode
    reason: str
    changes: tuple[DepthChange, ...] = ()
    standing: StandingLimits = field(default_factory=StandingLimits)
    untried: tuple[int, ...] | None = None
