"""Step time by batch size and K, learned online over a prior.

log seconds = drift + log(roofline with scaled coefficients) + residual of the cell, tracked by a Kalman filter:

- *Drift* is common to all cells and fast. A machine that slows down slows every cell, so cells measured at different
  times stay comparable, and drift cancels when two depths are compared.
- The *coefficients* carry lessons from one batch size and K to others, through the physics of the prior.
- *Residuals* hold what the prior's shape cannot: graph sizes, tiles, an expert layer with uneven routing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from statistics import median
from typing import NamedTuple

from peagle.router.depth.ladder import range_index
from peagle.router.depth.priors import CostPrior, Terms
from peagle.router.snapshot import StepCell, StepTime

# Standard deviations of logarithms. Drift: at the start, and of its random walk over one second.
_DRIFT_SD, _DRIFT_WALK_SD = 0.5, 0.03
# The cost of a sequence grows with its context, which may double within a minute.
_SEQUENCE, _SEQUENCE_WALK_SD = 1 + Terms._fields.index("sequence"), 0.01
_TOKEN = 1 + Terms._fields.index("token")
# A cell's residual before any measurement, and of its walk over one second up to that initial uncertainty.
_RESIDUAL_SD, _RESIDUAL_WALK_SD = 0.08, 0.003
# Noise of one step, and the part that remains however many steps are averaged.
_STEP_SD, _REPORT_SD = 0.1, 0.015
# An innovation beyond this many standard deviations is clipped, and the drift may follow in the next report.
_OUTLIER_SDS = 3.0
_DT_S_MAX = 60.0
# Calibration: passes of the filter, and how much serving may differ from the timed steps. Contexts may be ten times as
# long; sampling and other work on the machine vary less.
_PASSES, _SERVED_SD, _SERVED_SEQUENCE_SD = 2, 0.1, 1.0
# Other work on the machine shifts a timed point by this much if it took this many seconds; less, the longer it took.
_BUSY_SD, _BUSY_S = 0.06, 0.25
# Cells with the most steps hold nearly all information of a report; others are skipped, to bound the work.
_CELLS_MAX = 6

Matrix = tuple[tuple[float, ...], ...]
Key = tuple[int, int]
"""Index of a batch range, and K."""


@dataclass(frozen=True, slots=True)
class Residual:
    """A cell's log step time minus the rest of the model; `variance` is as of `seen_s`."""

    mean: float
    variance: float
    seen_s: float

    def variance_at(self, now_s: float) -> float:
        return min(self.variance + _RESIDUAL_WALK_SD**2 * max(0.0, now_s - self.seen_s), _RESIDUAL_SD**2)


class Load(NamedTuple):
    """Work of one step: sequences, tokens that the target computes, sequences that the drafter drafts for."""

    batch_size: float
    tokens: float
    drafting: float


@dataclass(frozen=True, slots=True)
class StepCost:
    """The step-time model.

    Attributes:
        prior: Its starting point.
        scales: The drift, then the logarithm of each coefficient's correction.
        covariance: Covariance of `scales`.
        residuals: By batch range and K, where measured.
        updated_s: When it last learned.
        steps: Number of steps that it has learned from.
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
        """The prior's coefficients with their current corrections, without the drift."""
        return Terms(*(c * exp(s) for c, s in zip(self.prior.coefficients, self.scales[1:], strict=True)))

    def log_step_s(self, coefficients: Terms, load: Load, key: Key | None) -> float:
        """Predict the log step time; `coefficients` is this model's property, computed once for many predictions."""
        seconds = self.prior.seconds(coefficients, *load)
        residual = self._residual(key)[0] if key is not None else 0.0
        return self.scales[0] + log(seconds) + residual

    @property
    def drift(self) -> float:
        """How many times longer a step takes now than the coefficients predict."""
        return exp(self.scales[0])

    def step_s(self, load: Load) -> float:
        """Predict the seconds of a step that belongs to no cell."""
        return exp(self.log_step_s(self.coefficients, load, None))

    def shares(self, coefficients: Terms, load: Load) -> tuple[float, ...]:
        """Return the sensitivity of a prediction to `scales`: 1 for the drift, then each term's share of the step."""
        terms = self.prior.terms(coefficients, *load)
        seconds = sum(terms)
        return (1.0, *(term / seconds for term in terms))

    def residual_variance(self, key: Key, now_s: float) -> float:
        _, likeness, measured = self._residual(key)
        known = measured.variance_at(now_s) if measured else 0.0
        return likeness**2 * known + (1.0 - likeness**2) * _RESIDUAL_SD**2

    def measured(self, key: Key) -> bool:
        """Return whether any step of that cell has been learned."""
        return key[1] in self.residuals.get(key[0], ())

    def _residual(self, key: Key) -> tuple[float, float, Residual | None]:
        """Return a cell's residual, its likeness to the cell that this comes from, and that cell's own residual.

        An unmeasured cell takes after the nearest measured K at the same batch sizes; less, the more K differs.
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
        """Return the variance of a weighted sum of `scales`."""
        return max(0.0, _dot(weights, _times(self.covariance, weights)))


def load_of(cell: StepCell, drafter_skipped_at_zero: bool) -> Load:
    """Return the mean step of a cell, by the drafts really verified. A drafter that is never skipped runs every step.

    Sequences that have ended are computed like the others, with drafts that are not counted.
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
    """Learn from the steps timed before the first request, which served no client.

    The prior of another machine may be off by a large factor, and the filter clips large surprises. So the drift first
    takes up the median error. Each pass then starts from the coefficients of the previous one, since the filter's
    slopes hold only locally.
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
    """Recompute the residuals: the part of each time that the final coefficients leave unexplained, beyond noise."""
    coefficients = state.coefficients
    left = [log(each.seconds / each.steps) - state.log_step_s(coefficients, load, None) for each, load in times]
    noises = [_STEP_SD**2 / each.steps + _BUSY_SD**2 * min(1.0, _BUSY_S / each.seconds) for each, _ in times]
    variance = max(_RESIDUAL_SD**2 / 4.0, (sum(error**2 for error in left) - sum(noises)) / len(left))
    # Residuals that a fleet has learned at other points stay.
    residuals = {index: dict(by_depth) for index, by_depth in state.residuals.items()}
    for (each, _), error, noise in zip(times, left, noises, strict=True):
        gain = variance / (variance + noise)
        known = Residual(gain * error, gain * noise, now_s)
        residuals.setdefault(range_index(each.batch_size, batch_max), {})[each.depth] = known
    return replace(state, residuals=residuals)


def _load_of_time(each: StepTime, drafter_skipped_at_zero: bool) -> Load:
    """Return the load of a timed step."""
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
    """Return the cell whose residual is measured; None if the drafts did not reach the requested K."""
    return (range_index(cell.batch_size, batch_max), cell.depth) if cell.reached else None


def relearned(state: StepCost) -> StepCost:
    """Return the model for another machine of the same kind: the same values, with the initial uncertainty."""
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
    """Raise the variance of one scale by `variance`, up to `most`."""
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
