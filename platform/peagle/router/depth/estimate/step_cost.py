"""How long a step takes at a batch size and a K, learned online over a prior.

log seconds = drift + log(roofline with scaled coefficients) + residual of the cell, followed by a Kalman filter:

- *Drift* is common to every cell and quick: a machine that slows down slows everything, so cells that were measured at
  different times stay comparable, and it cancels where two depths are compared.
- The *coefficients* carry what is learned at one batch size and K over to others, by the physics of the prior.
- *Residuals* hold whatever the prior's shape cannot: graph sizes, tiles, an expert layer that routes unevenly.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

from peagle.router.depth.ladder import range_index
from peagle.router.depth.priors import CostPrior, Terms
from peagle.router.snapshot import StepCell, StepTime

# Standard deviations of logarithms. Drift: at the start, and of its walk over one second.
_DRIFT_SD, _DRIFT_WALK_SD = 0.5, 0.03
# What a sequence costs follows the length of its context, which may double within a minute.
_SEQUENCE, _SEQUENCE_WALK_SD = 1 + Terms._fields.index("sequence"), 0.01
_TOKEN = 1 + Terms._fields.index("token")
# A cell's residual before it is measured, and of its walk over one second until it is no better known than that.
_RESIDUAL_SD, _RESIDUAL_WALK_SD = 0.08, 0.003
# One step, and what remains however many steps are averaged.
_STEP_SD, _REPORT_SD = 0.1, 0.015
# An innovation beyond this many standard deviations is cut to it, and the drift is free to follow at the next.
_OUTLIER_SDS = 3.0
_DT_S_MAX = 60.0
# Calibration: passes of the filter, and how far serving may differ from what was timed: contexts may be ten times as
# long; sampling and whatever else the machine then does change less.
_PASSES, _SERVED_SD, _SERVED_SEQUENCE_SD = 2, 0.1, 1.0
# What else the machine does moves a point that was timed for so many seconds by so much; less, the longer it was.
_BUSY_SD, _BUSY_S = 0.06, 0.25
# The cells with the most steps tell nearly everything of a report; the rest are left out, to bound the work.
_CELLS_MAX = 6

Matrix = tuple[tuple[float, ...], ...]
Key = tuple[int, int]
"""Index of a batch range, and K."""


@dataclass(frozen=True, slots=True)
class Residual:
    """What a cell's logarithm of step time is above the rest of the model; `variance` as of `seen_s`."""

    mean: float
    variance: float
    seen_s: float

    def variance_at(self, now_s: float) -> float:
        return min(self.variance + _RESIDUAL_WALK_SD**2 * max(0.0, now_s - self.seen_s), _RESIDUAL_SD**2)


class Load(NamedTuple):
    """What one step computes: sequences, tokens that the target computes, sequences that are drafted for."""

    batch_size: float
    tokens: float
    drafting: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The model.

    Attributes:
        prior: What it started from.
        scales: The drift, then the logarithm of each coefficient's correction.
        covariance: Of `scales`.
        residuals: By batch range and K, where measured.
        updated_s: When it last learned.
        steps: How many it has learned from.
    """

    prior: CostPrior
    scales: tuple[float, ...]
    covariance: Matrix
    residuals: Mapping[int, Mapping[int, Residual]] = field(default_factory=dict)
    updated_s: float | None = None
    steps: int = 0

    @classmethod
    def start(cls, prior: CostPrior) -> "StepCost":
        variances = (_DRIFT_SD**2, *(prior.scale_sd**2 for _ in Terms._fields))
        size = len(variances)
        covariance = tuple(tuple(variances[i] if i == j else 0.0 for j in range(size)) for i in range(size))
        return cls(prior, (0.0,) * size, covariance)

    @property
    def coefficients(self) -> Terms:
        """The prior's coefficients, as corrected by now, without the drift."""
        return Terms(*(c * exp(s) for c, s in zip(self.prior.coefficients, self.scales[1:], strict=True)))

    def log_step_s(self, coefficients: Terms, load: Load, key: Key | None) -> float:
        """Predict; `coefficients` is this model's own property, computed once for many predictions."""
        seconds = self.prior.seconds(coefficients, *load)
        residual = self._residual(key)[0] if key is not None else 0.0
        return self.scales[0] + log(seconds) + residual

    @property
    def drift(self) -> float:
        """How much longer everything takes now than on the machine that the coefficients are of."""
        return exp(self.scales[0])

    def step_s(self, load: Load) -> float:
        """Predict the seconds of a step that is of no cell."""
        return exp(self.log_step_s(self.coefficients, load, None))

    def shares(self, coefficients: Terms, load: Load) -> tuple[float, ...]:
        """Sensitivity of a prediction to `scales`: 1 for the drift, then each term's share of the step."""
        terms = self.prior.terms(coefficients, *load)
        seconds = sum(terms)
        return (1.0, *(term / seconds for term in terms))

    def residual_variance(self, key: Key, now_s: float) -> float:
        _, likeness, measured = self._residual(key)
        known = measured.variance_at(now_s) if measured else 0.0
        return likeness**2 * known + (1.0 - likeness**2) * _RESIDUAL_SD**2

    def measured(self, key: Key) -> bool:
        """Whether a step of that cell was ever learned from."""
        return key[1] in self.residuals.get(key[0], ())

    def _residual(self, key: Key) -> tuple[float, float, Residual | None]:
        """A cell's residual, how like it the cell is that this is taken from, and that one's own.

        A cell that was not measured takes after the nearest K that was, at the same batch sizes; less, the further off.
        """
        index, depth = key
        near = self.residuals.get(index)
        if not near:
            return 0.0, 0.0, None
        if (own := near.get(depth)) is not None:
            return own.mean, 1.0, own
        nearest = min(near, key=lambda other: abs(log((other + 1) / (depth + 1))))
        likeness = min(nearest + 1, depth + 1) / max(nearest + 1, depth + 1)
        return likeness * near[nearest].mean, likeness, near[nearest]

    def spread(self, weights: tuple[float, ...]) -> float:
        """Variance of a weighted sum of `scales`."""
        return max(0.0, _dot(weights, _times(self.covariance, weights)))


def load_of(cell: StepCell, drafter_skipped_at_zero: bool) -> Load:
    """The mean step of a cell, by what was really verified; a drafter that is never skipped runs for all sequences.

    Sequences that have ended are computed like the others, with drafts that are counted nowhere.
    """
    each = cell.batch_size / max(1, cell.sequences)
    drafted = sum(cell.drafted) * each
    drafting = min(cell.batch_size, cell.drafts * each) if drafter_skipped_at_zero else cell.batch_size
    return Load(cell.batch_size, cell.batch_size + drafted, drafting)


def observe(
    state: StepCost, cells: Iterable[StepCell], batch_max: int, drafter_skipped_at_zero: bool, now_s: float
) -> StepCost:
    """Learn from the cells of one report."""
    chosen = sorted((cell for cell in cells if cell.steps > 0 and cell.seconds > 0), key=lambda cell: -cell.steps)
    if not chosen:
        return state
    elapsed_s = min(_DT_S_MAX, max(0.0, now_s - state.updated_s)) if state.updated_s is not None else 0.0
    state = _drifted(state, _DRIFT_WALK_SD**2 * elapsed_s)
    state = _widened(state, _SEQUENCE, _SEQUENCE_WALK_SD**2 * elapsed_s, state.prior.scale_sd**2)
    for cell in chosen[:_CELLS_MAX]:
        load, key = load_of(cell, drafter_skipped_at_zero), cell_key(cell, batch_max)
        state = _learn(state, cell.seconds / cell.steps, cell.steps, load, key, now_s)
    return replace(state, updated_s=now_s, steps=state.steps + sum(cell.steps for cell in chosen))


def calibrated(
    state: StepCost, times: Sequence[StepTime], batch_max: int, drafter_skipped_at_zero: bool, now_s: float
) -> StepCost:
    """Learn from what was timed before the first request; nobody has been served by these steps.

    A prior of another machine may be off by a multiple, for which single surprises are not followed: so the drift first
    takes in what all have in common, and each pass begins from the coefficients that the one before it came to, since
    the filter's slopes hold only near by.
    """
    usable = [(each, _load_of_time(each, drafter_skipped_at_zero)) for each in times if each.steps and each.seconds > 0]
    if not usable:
        return state
    kept = state.residuals
    errors = (log(each.seconds / each.steps) - log(state.step_s(load)) for each, load in usable)
    state = replace(state, scales=(state.scales[0] + median(errors), *state.scales[1:]))
    begun = replace(state, residuals={})
    for _ in range(_PASSES):
        state = replace(begun, scales=state.scales)
        for each, load in usable:
            key = range_index(each.batch_size, batch_max), each.depth
            state = _learn(state, each.seconds / each.steps, each.steps, load, key, now_s)
    state = _with_residuals(replace(state, residuals=kept), usable, batch_max, now_s)
    state = _widened(_drifted(state, _SERVED_SD**2), _TOKEN, _SERVED_SD**2, state.prior.scale_sd**2)
    return _widened(state, _SEQUENCE, _SERVED_SEQUENCE_SD**2, _SERVED_SEQUENCE_SD**2)


def _with_residuals(state: StepCost, times: Sequence[tuple[StepTime, Load]], batch_max: int, now_s: float) -> StepCost:
    """Take the residuals anew, from what the coefficients leave in the end, as far as it is more than noise."""
    coefficients = state.coefficients
    left = [log(each.seconds / each.steps) - state.log_step_s(coefficients, load, None) for each, load in times]
    noises = [_STEP_SD**2 / each.steps + _BUSY_SD**2 * min(1.0, _BUSY_S / each.seconds) for each, _ in times]
    variance = max(_RESIDUAL_SD**2 / 4.0, (sum(error**2 for error in left) - sum(noises)) / len(left))
    # What a fleet has learned at other points stays.
    residuals = {index: dict(by_depth) for index, by_depth in state.residuals.items()}
    for (each, _), error, noise in zip(times, left, noises, strict=True):
        gain = variance / (variance + noise)
        known = Residual(gain * error, gain * noise, now_s)
        residuals.setdefault(range_index(each.batch_size, batch_max), {})[each.depth] = known
    return replace(state, residuals=residuals)


def _load_of_time(each: StepTime, drafter_skipped_at_zero: bool) -> Load:
    """What a timed step computed."""
    drafting = each.batch_size if each.depth or not drafter_skipped_at_zero else 0
    return Load(each.batch_size, each.batch_size * (each.depth + 1), drafting)


def _learn(state: StepCost, step_s: float, steps: int, load: Load, key: Key | None, now_s: float) -> StepCost:
    coefficients = state.coefficients
    weights = state.shares(coefficients, load)
    error = log(step_s) - state.log_step_s(coefficients, load, key)
    spread = _times(state.covariance, weights)
    residual_variance = state.residual_variance(key, now_s) if key is not None else _RESIDUAL_SD**2
    variance = _dot(weights, spread) + residual_variance + _STEP_SD**2 / steps + _REPORT_SD**2
    bound = _OUTLIER_SDS * sqrt(variance)
    surprise = max(0.0, abs(error) - bound)
    error = min(max(error, -bound), bound)
    scales = tuple(scale + gain / variance * error for scale, gain in zip(state.scales, spread, strict=True))
    covariance = tuple(
        tuple(entry - row_gain * gain / variance for entry, gain in zip(row, spread, strict=True))
        for row, row_gain in zip(state.covariance, spread, strict=True)
    )
    residuals = state.residuals
    if key is not None:
        index, depth = key
        gain = residual_variance / variance
        after = Residual(state._residual(key)[0] + gain * error, residual_variance * (1.0 - gain), now_s)
        residuals = {**residuals, index: {**residuals.get(index, {}), depth: after}}
    learned = replace(state, scales=scales, covariance=covariance, residuals=residuals)
    return _drifted(learned, (surprise / _OUTLIER_SDS) ** 2)


def cell_key(cell: StepCell, batch_max: int) -> Key | None:
    """Which residual a cell measures; None where its drafts did not reach the K asked for."""
    return (range_index(cell.batch_size, batch_max), cell.depth) if cell.reached else None


def relearned(state: StepCost) -> StepCost:
    """The same model for another machine of the same kind: the values stay, as a guess that is open again."""
    residuals = {
        index: {
            depth: Residual(kept.mean, max(kept.variance, _RESIDUAL_SD**2 / 4.0), kept.seen_s)
            for depth, kept in by_depth.items()
        }
        for index, by_depth in state.residuals.items()
    }
    return StepCost(state.prior, state.scales, StepCost.start(state.prior).covariance, residuals)


def _drifted(state: StepCost, variance: float) -> StepCost:
    return _widened(state, 0, variance, _DRIFT_SD**2 * 4.0)


def _widened(state: StepCost, index: int, variance: float, most: float) -> StepCost:
    """One of the scales becomes less known by `variance`, up to `most`."""
    if variance <= 0.0:
        return state
    rows = list(state.covariance)
    row = list(rows[index])
    row[index] = max(row[index], min(row[index] + variance, most))
    rows[index] = tuple(row)
    return replace(state, covariance=tuple(rows))


def _times(matrix: Matrix, vector: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(_dot(row, vector) for row in matrix)


def _dot(left: tuple[float, ...], right: tuple[float, ...]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
