"""Where the load is: the batch range in which a replica spends most time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

# Half-lives of the two sums of time, and the lead that another range needs. A load that swings between two neighbours
# stays with one of them; a larger jump is followed at once.
_HALF_LIFE_S, _BESIDE_HALF_LIFE_S, _LEAD = 1.0, 4.0, 1.5


@dataclass(frozen=True, slots=True)
class Busy:
    """Seconds of steps by batch range, with a short and a long half-life.

    Attributes:
        main: The range with the load; None before the first step.
        seen_s: When a step was last counted.
    """

    main: int | None = None
    seen_s: float | None = None
    _lately: Mapping[int, float] = field(default_factory=dict)
    _longer: Mapping[int, float] = field(default_factory=dict)

    def observe(self, seconds: Mapping[int, float], now_s: float) -> "Busy":
        """Count one report: `seconds` of steps by batch range, each above 0."""
        if not seconds:
            return self
        elapsed_s = max(0.0, now_s - self.seen_s) if self.seen_s is not None else 0.0
        lately = _added(self._lately, seconds, 0.5 ** (elapsed_s / _HALF_LIFE_S))
        longer = _added(self._longer, seconds, 0.5 ** (elapsed_s / _BESIDE_HALF_LIFE_S))
        return Busy(_main(lately, longer, self.main), now_s, lately, longer)


def _added(before: Mapping[int, float], seconds: Mapping[int, float], kept: float) -> Mapping[int, float]:
    return {index: before.get(index, 0.0) * kept + seconds.get(index, 0.0) for index in {**before, **seconds}}


def _main(lately: Mapping[int, float], longer: Mapping[int, float], before: int | None) -> int:
    most = max(lately, key=lately.__getitem__)
    if before is None or most == before:
        return most
    busy_s = longer if abs(most - before) == 1 else lately
    return most if busy_s[most] > _LEAD * busy_s.get(before, 0.0) else before
