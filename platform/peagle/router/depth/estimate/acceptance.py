"""Probability that the first j drafts are all accepted, estimated without bias while K varies.

A draft verified to depth K says nothing about deeper positions, like a patient who leaves a study. So each position is
counted among the drafts that reached it (the Kaplan-Meier estimator), and the product of these conditional ratios never
rises with the position. Tails cut before verification, where the engine scores them, extend the drafts that reached the
cut.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from math import sqrt
from operator import mul

from peagle.router.depth.settings import AcceptancePrior
from peagle.router.snapshot import StepCell

# Drafts that the prior keeps at each position forever, so that a position never reached has a value.
_PRIOR_KEPT = 4.0
# A report deviates at this many standard deviations, by the scatter of earlier reports. Two in a row on the same side
# are a shift: the prompts have changed, and the past is dropped except for this many drafts.
_DEVIATIONS = 3.5
_SHIFT_REPORTS = 2
_KEPT_DRAFTS = 10.0
# Below this variance (of accepted drafts) a report is too small to judge.
_VARIANCE_MIN = 3.0
# Reports scatter more than independent drafts, since prompts differ. The excess is learned within these bounds.
_DISPERSION_START, _DISPERSION_MAX, _DISPERSION_GAIN = 2.0, 6.0, 0.05
# After this many seconds without a draft, the past counts at most this many drafts: traffic may have changed unseen.
_GAP_S, _GAP_DRAFTS = 3.0, 40.0


@dataclass(frozen=True, slots=True)
class Counts:
    """By position: drafts that reached it, and those accepted there. Fractions, since they fade."""

    at_risk: tuple[float, ...]
    survived: tuple[float, ...]

    @classmethod
    def none(cls, depth_max: int) -> "Counts":
        return cls((0.0,) * depth_max, (0.0,) * depth_max)

    @property
    def drafts(self) -> float:
        return self.at_risk[0]

    def scaled(self, factor: float) -> "Counts":
        return Counts(tuple(x * factor for x in self.at_risk), tuple(x * factor for x in self.survived))

    def capped(self, drafts: float) -> "Counts":
        """Return the same ratios at the weight of at most `drafts` drafts."""
        return self if self.drafts <= drafts else self.scaled(drafts / self.drafts)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            tuple(a + b for a, b in zip(self.at_risk, other.at_risk, strict=True)),
            tuple(a + b for a, b in zip(self.survived, other.survived, strict=True)),
        )


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The acceptance estimate.

    Attributes:
        counts: Evidence, forgotten by draft count.
        prior: Ratios where there is no evidence.
        dispersion: Variance of reports over that of independent drafts.
        seen_s: When the last draft was counted; None before the first.
        suspect: Sum of the last reports, if they deviated; `suspect_sign` is the side, `suspect_reports` their number.
        shifts: Number of times the past was dropped.
    """

    counts: Counts
    prior: AcceptancePrior
    dispersion: float = _DISPERSION_START
    seen_s: float | None = None
    suspect: Counts | None = None
    suspect_sign: int = 0
    suspect_reports: int = 0
    shifts: int = 0

    @classmethod
    def start(cls, prior: AcceptancePrior) -> "Acceptance":
        """Begin with a prior alone, which is forgotten like any evidence."""
        survival = tuple(accumulate(prior.conditional, mul))
        reached = (1.0, *survival[:-1])
        counts = Counts(tuple(prior.drafts * x for x in reached), tuple(prior.drafts * x for x in survival))
        return cls(counts, prior)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Probability that a draft is accepted, given that all before it were, by position."""
        return tuple(
            min(1.0, (right + _PRIOR_KEPT * prior) / (reached + _PRIOR_KEPT))
            for right, reached, prior in zip(
                self.counts.survived, self.counts.at_risk, self.prior.conditional, strict=True
            )
        )

    @property
    def survival(self) -> tuple[float, ...]:
        """Probability that the first j + 1 drafts are all accepted, at index j; never rises."""
        return tuple(accumulate(self.conditional, mul))

    @property
    def variances(self) -> tuple[float, ...]:
        """Variance of each entry of `conditional`."""
        return tuple(
            self.dispersion * max(c * (1.0 - c), 0.01) / (reached + _PRIOR_KEPT)
            for c, reached in zip(self.conditional, self.counts.at_risk, strict=True)
        )


def observe(state: Acceptance, added: Counts, half_life_drafts: float, now_s: float) -> Acceptance:
    """Count one report; drop the past if this is the second in a row that deviates to the same side."""
    if added.drafts <= 0.0 and not any(added.at_risk):
        return state
    if state.seen_s is not None and now_s - state.seen_s > _GAP_S:
        state = replace(state, counts=state.counts.capped(_GAP_DRAFTS))
    state = replace(state, seen_s=now_s)
    deviation = _deviation(state, added)
    dispersion, deviates = state.dispersion, False
    if deviation is not None:
        deviates = deviation**2 > _DEVIATIONS**2 * dispersion
        step = _DISPERSION_GAIN * (min(deviation**2, 9.0 * dispersion) - dispersion)
        dispersion = min(max(dispersion + step, 1.0), _DISPERSION_MAX)
    kept = state.counts.scaled(0.5 ** (added.drafts / half_life_drafts))
    if not deviates or deviation is None:
        return replace(state, counts=kept + added, dispersion=dispersion, suspect=None, suspect_reports=0)
    sign = 1 if deviation > 0 else -1
    again = state.suspect is not None and sign == state.suspect_sign
    suspect = state.suspect + added if again and state.suspect is not None else added
    reports = state.suspect_reports + 1 if again else 1
    if reports >= _SHIFT_REPORTS:
        fresh = state.counts.capped(_KEPT_DRAFTS) + suspect
        return replace(
            state, counts=fresh, dispersion=dispersion, suspect=None, suspect_reports=0, shifts=state.shifts + 1
        )
    return replace(
        state,
        counts=kept + added,
        dispersion=dispersion,
        suspect=suspect,
        suspect_sign=sign,
        suspect_reports=reports,
    )


def _deviation(state: Acceptance, added: Counts) -> float | None:
    """Return accepted drafts minus those expected, in standard deviations; None with too little evidence.

    This is the log-rank statistic: it compares at each position the drafts that reached it, so the depths may differ.
    """
    excess = variance = 0.0
    for c, known, reached, right in zip(
        state.conditional, state.counts.at_risk, added.at_risk, added.survived, strict=True
    ):
        excess += right - reached * c
        variance += reached * c * (1.0 - c) * (1.0 + reached / (known + _PRIOR_KEPT))
    return excess / sqrt(variance) if variance >= _VARIANCE_MIN else None


def counts_of(cells: Iterable[StepCell], depth_max: int) -> Counts:
    """Turn the counts added since the last report into drafts at risk and accepted, by position."""
    at_risk, survived = [0.0] * depth_max, [0.0] * depth_max
    for cell in cells:
        _add_verified(cell, at_risk, survived)
        _add_tail(cell, at_risk, survived)
    return Counts(tuple(at_risk), tuple(survived))


def _add_verified(cell: StepCell, at_risk: list[float], survived: list[float]) -> None:
    reached = cell.drafted[0]
    for position, (drafted, accepted) in enumerate(zip(cell.drafted, cell.accepted, strict=True)):
        if not drafted:
            break
        at_risk[position] += reached
        survived[position] += accepted
        # A draft that ended here says nothing about later positions. Drafts cut by a grammar are rejected more often
        # than others, so the share that continues differs between the two.
        reached = accepted - (cell.whole[position] if cell.whole else 0)


def _add_tail(cell: StepCell, at_risk: list[float], survived: list[float]) -> None:
    for position, (reached, matched) in enumerate(zip(cell.tail_reached, cell.tail_matched, strict=True)):
        at_risk[position] += reached
        survived[position] += matched


def pooled(states: Iterable[Acceptance], fallback: AcceptancePrior, drafts: float) -> AcceptancePrior:
    """Return a fleet's evidence about one model as the prior of a new replica, with the weight of `drafts` drafts."""
    total = Acceptance.start(replace(fallback, drafts=_PRIOR_KEPT))
    for state in states:
        total = replace(total, counts=total.counts + state.counts)
    return AcceptancePrior(total.conditional, drafts)
