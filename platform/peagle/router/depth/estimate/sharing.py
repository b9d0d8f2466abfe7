"""Gain of sharing a step's drafts among its requests, compared with K for each request."""

from collections.abc import Iterable
from dataclasses import dataclass

from peagle.router.snapshot import StepCell

# Half-life, in drafts accepted at the deepest K; and the number of drafts that count as shared without gain at first.
_HALF_LIFE_DRAFTS, _PRIOR_DRAFTS = 1000.0, 20.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """Expected accepted drafts, by K - 1: with K for each request, and with as many drafts shared out.

    Batches of one request are excluded, since they have nothing to share.
    """

    equal: tuple[float, ...]
    shared: tuple[float, ...]

    @classmethod
    def start(cls, depth_max: int) -> "Sharing":
        return cls((0.0,) * depth_max, (0.0,) * depth_max)

    def gain_ratio(self, batch_size: int, depth: int) -> float:
        """Return the accepted drafts with sharing over those without: 1 for no gain."""
        if depth == 0 or batch_size < 2:
            return 1.0
        return (self.shared[depth - 1] + _PRIOR_DRAFTS) / (self.equal[depth - 1] + _PRIOR_DRAFTS)

    def observe(self, cells: Iterable[StepCell]) -> "Sharing":
        told = [cell for cell in cells if cell.equal_right]
        equal, shared = (
            [sum(each) for each in zip(*sums, strict=True)]
            for sums in ([cell.equal_right for cell in told], [cell.shared_right for cell in told])
        )
        if not equal:
            return self
        kept = 0.5 ** (equal[-1] / _HALF_LIFE_DRAFTS)
        return Sharing(_added(self.equal, kept, equal), _added(self.shared, kept, shared))


def _added(before: tuple[float, ...], kept: float, more: list[float]) -> tuple[float, ...]:
    return tuple(old * kept + new for old, new in zip(before, more, strict=True))
