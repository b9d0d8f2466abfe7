"""What the depth rule is told: the model's bounds and priors, what an operator decides, and how calmly to act."""

from dataclasses import dataclass

from peagle.router.depth.ladder import depth_ladder
from peagle.router.depth.priors import CostPrior


@dataclass(frozen=True, slots=True)
class DepthLimits:
    """What an operator decides; it wins over everything that is learned.

    Attributes:
        floor: No K below this.
        ceiling: No K above this; None for the model's own.
        pin: Exactly this K at every batch size; wins over floor and ceiling.
        paused: The table stays as it is; learning goes on.
    """

    floor: int = 0
    ceiling: int | None = None
    pin: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class StandingLimits:
    """What operators had decided when a plan was made: for the model, and for the replica; None for nothing.

    Replicas return it with their reports, so that a Router that was lost and comes back knows it again.
    """

    model: DepthLimits | None = None
    replica: DepthLimits | None = None


@dataclass(frozen=True, slots=True)
class AcceptancePrior:
    """A first guess of acceptance, which counts as much as `drafts` observed drafts and is forgotten like them.

    `conditional[j]` is the probability that draft j + 1 is right where all before it were.
    """

    conditional: tuple[float, ...]
    drafts: float

    @classmethod
    def geometric(cls, depth_max: int, ratio: float = 0.7, drafts: float = 20.0) -> "AcceptancePrior":
        """Every draft is right with probability `ratio`: published curves lie between 0.6 and 0.75."""
        return cls((ratio,) * depth_max, drafts)


@dataclass(frozen=True, slots=True)
class DepthSettings:
    """Everything that the rule needs to know of one replica and its reports do not tell.

    Attributes:
        depth_max: Tokens that the drafter drafts; the deepest K.
        depth_static: The K that was configured; what a fallback returns to.
        batch_max: The largest batch size (`max_num_seqs`).
        cost: First guess of the step time.
        acceptance: First guess of acceptance.
        limits: What an operator decides.
        inter_token_s_max: A depth whose predicted step takes longer is ruled out, if any other keeps it.
        drafter_skipped_at_zero: Whether K = 0 runs no drafter; else a step at K = 0 is expected to pay for it.
        by_request: Whether a step's drafts are shared out among its requests: K is then one on average.
        half_life_drafts: An observed draft counts half after this many more.
        gain_ratio: A change must promise this much more tokens/s.
        trials_at_once: Trials of another K in a row at a new batch size, or with other prompts;
        trial_every_s: seconds of load there until one more may.
        trial_s_max: A trial that has seen too little by then is given up.
        blind_s: Without a draft for so long, what is known of acceptance may be of traffic that is gone.
        guard_hold_s: Least and most time at the static K after the guard; each time doubles it.
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
        """The depths to choose from, shallowest first: within the operator's bounds, the static K among them."""
        return depth_ladder(self.depth_max, self.limits.floor, self.limits.ceiling, self.depth_static)
