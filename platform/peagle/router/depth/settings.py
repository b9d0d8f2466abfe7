"""Inputs of the depth rule: the model's bounds and priors, the operator's limits, and how fast the rule may act."""

from dataclasses import dataclass

from peagle.router.depth.ladder import depth_ladder
from peagle.router.depth.priors import CostPrior


@dataclass(frozen=True, slots=True)
class DepthLimits:
    """An operator's limits. They override everything that is learned.

    Attributes:
        floor: Lowest K.
        ceiling: Highest K; None for the model's own maximum.
        pin: Exactly this K at every batch size; overrides floor and ceiling.
        paused: The table does not change; learning continues.
    """

    floor: int = 0
    ceiling: int | None = None
    pin: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class StandingLimits:
    """The operators' limits when a plan was made, for the model and for the replica; None if not set.

    Replicas return it with their reports, so that a restarted Router recovers it.
    """

    model: DepthLimits | None = None
    replica: DepthLimits | None = None


@dataclass(frozen=True, slots=True)
class AcceptancePrior:
    """First guess of acceptance. It counts as `drafts` observed drafts and is forgotten like them.

    `conditional[j]` is the probability that draft j + 1 is accepted, given that all before it were.
    """

    conditional: tuple[float, ...]
    drafts: float

    @classmethod
    def geometric(cls, depth_max: int, ratio: float = 0.7, drafts: float = 20.0) -> "AcceptancePrior":
        """Accept every draft with probability `ratio`. Published curves lie between 0.6 and 0.75."""
        return cls((ratio,) * depth_max, drafts)


@dataclass(frozen=True, slots=True)
class DepthSettings:
    """What the rule must know about one replica that its reports do not contain.

    Attributes:
        depth_max: Tokens that the drafter drafts; the deepest K.
        depth_static: The configured K; a fallback returns to it.
        batch_max: The largest batch size (`max_num_seqs`).
        cost: First guess of the step time.
        acceptance: First guess of acceptance.
        limits: The operator's limits.
        inter_token_s_max: Depths with a longer predicted step are excluded, unless this excludes all of them.
        drafter_skipped_at_zero: Whether K = 0 skips the drafter; otherwise a step at K = 0 includes its cost.
        by_request: Whether requests share a step's drafts, so that K is an average.
        half_life_drafts: After this many further drafts, an observed draft counts half.
        gain_ratio: Smallest predicted gain in tokens/s for a change.
        trials_at_once: Consecutive trials of another K at a new batch size, or after a change of traffic.
        trial_every_s: Seconds of load at a batch size that earn one further trial.
        trial_s_max: A trial without enough evidence ends after this time.
        blind_s: Without a draft for this long, the acceptance estimate may describe past traffic.
        guard_hold_s: Shortest and longest time at the static K after a guard trip; each trip doubles the time.
    """

    depth_max: int
    depth_static: int
    batch_max: int
    cost: CostPrior
    acceptance: AcceptancePrior
    limits: DepthLimits = DepthLimits()
    inter_token_s_max: float | None = None
    drafter_skipped_at_zero: bool = True
    by_request: bool = False
    half_life_drafts: float = 2000.0
    gain_ratio: float = 0.02
    trials_at_once: float = 4.0
    trial_every_s: float = 75.0
    trial_s_max: float = 3.0
    blind_s: float = 5.0
    guard_hold_s: tuple[float, float] = (30.0, 600.0)

    @property
    def rungs(self) -> tuple[int, ...]:
        """Depths to choose from, shallowest first, within the operator's bounds and including the static K."""
        return depth_ladder(self.depth_max, self.limits.floor, self.limits.ceiling, self.depth_static)
