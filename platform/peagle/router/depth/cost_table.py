"""Measured step times by batch size and K, in the form in which they are stored and read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any

from peagle.errors import ConfigError
from peagle.router.snapshot import StepCell, StepTime


@dataclass(frozen=True, slots=True)
class CostTable:
    """Timed decode-only steps, ordered by batch size and K; each pair once."""

    times: tuple[StepTime, ...]

    @classmethod
    def of(cls, cells: Iterable[StepCell | StepTime], steps_min: int = 1) -> "CostTable":
        """Sum counted or timed steps; keep pairs with at least `steps_min` steps."""
        summed: dict[tuple[int, int], tuple[int, float]] = {}
        for cell in cells:
            steps, seconds = summed.get((cell.batch_size, cell.depth), (0, 0.0))
            summed[cell.batch_size, cell.depth] = steps + cell.steps, seconds + cell.seconds
        kept = {key: both for key, both in sorted(summed.items()) if both[0] >= max(1, steps_min)}
        return cls(tuple(StepTime(*key, steps, seconds) for key, (steps, seconds) in kept.items()))

    @classmethod
    def from_plain(cls, rows: Sequence[Mapping[str, Any]]) -> "CostTable":
        """Read rows written by `plain`.

        Raises:
            ConfigError: A row is malformed.
        """
        try:
            times = [_time_in(row) for row in rows]
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError("cost_table", repr(error), "a row is not a step time", "Measure it again.") from None
        return cls.of(times)

    def plain(self) -> list[dict[str, Any]]:
        """Return one row of plain values for each batch size and K."""
        return [
            {
                "batch_size": each.batch_size,
                "depth": each.depth,
                "steps": each.steps,
                "step_ms": 1e3 * each.seconds / each.steps,
            }
            for each in self.times
        ]

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(each.batch_size for each in self.times))

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(sorted({each.depth for each in self.times}))

    def step_s(self, batch_size: float, depth: float) -> float:
        """Return the seconds of a step.

        Interpolates between batch sizes on logarithms and between depths linearly. Outside the measured range, the
        nearest measurement applies.

        Raises:
            ValueError: No step was timed.
        """
        shallower = max((each for each in self.depths if each <= depth), default=None)
        deeper = min((each for each in self.depths if each >= depth), default=None)
        if shallower is None and deeper is None:
            raise ValueError("no step was timed")
        if shallower is None or deeper is None or shallower == deeper:
            return self._step_s(batch_size, deeper if shallower is None else shallower)
        share = (depth - shallower) / (deeper - shallower)
        return (1.0 - share) * self._step_s(batch_size, shallower) + share * self._step_s(batch_size, deeper)

    def _step_s(self, batch_size: float, depth: int | None) -> float:
        """Return the seconds of a step at one of the measured K."""
        known = [(each.batch_size, each.seconds / each.steps) for each in self.times if each.depth == depth]
        below = [point for point in known if point[0] <= batch_size]
        above = [point for point in known if point[0] >= batch_size]
        if not below or not above or below[-1] == above[0]:
            return (below[-1] if below else above[0])[1]
        (low, low_s), (high, high_s) = below[-1], above[0]
        share = log(batch_size / low) / log(high / low)
        return exp(log(low_s) + share * (log(high_s) - log(low_s)))


def _time_in(row: Mapping[str, Any]) -> StepTime:
    steps = int(row["steps"])
    return StepTime(int(row["batch_size"]), int(row["depth"]), steps, steps * float(row["step_ms"]) / 1e3)
