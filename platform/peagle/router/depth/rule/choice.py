"""Chooses the depth of a batch range: the most tokens/s, if the gain is certain enough."""

from dataclasses import dataclass
from math import log1p

from peagle.router.depth.estimate.forecast import Forecast, Gain

# A depth excluded by an inter-token target returns only when its step stays below this share of the target.
_LATENCY_MARGIN = 0.95
# A change must exceed the minimum gain by this many standard deviations; by more for a deeper K, whose acceptance and
# cost are less certain.
SURE_SDS, SURE_SDS_DEEPER = 0.1, 0.25


@dataclass(frozen=True, slots=True)
class Wish:
    """A depth worth changing to.

    Attributes:
        depth: The new depth.
        gain: Its predicted gain.
        forced: Whether the current depth breaks the inter-token target.
    """

    depth: int
    gain: Gain
    forced: bool


def allowed_depths(forecast: Forecast, index: int, present: int) -> tuple[int, ...]:
    """Return the rungs within the operator's bounds whose step meets the inter-token target.

    If no rung meets it, return the rung with the fastest step.
    """
    settings = forecast.settings
    rungs = settings.rungs
    target_s = settings.inter_token_s_max
    if target_s is None:
        return rungs
    seconds = {rung: forecast.step_s(index, rung) for rung in rungs}
    kept = tuple(rung for rung in rungs if seconds[rung] <= target_s * (1.0 if rung == present else _LATENCY_MARGIN))
    return kept or (min(rungs, key=seconds.__getitem__),)


def wish(forecast: Forecast, index: int, present: int) -> Wish | None:
    """Return the depth worth changing to; None if the current depth is as good.

    Considers every depth that is certainly better, so a neighbour without gain does not hide a better rung beyond it.
    """
    rungs = allowed_depths(forecast, index, present)
    best, forced = max(rungs, key=lambda rung: forecast.log_yield(index, rung)), present not in rungs
    if forced:
        return Wish(best, forecast.gain(index, present, best), True)
    if best == present:
        return None
    least = log1p(forecast.settings.gain_ratio)
    gains = {rung: forecast.gain(index, present, rung) for rung in rungs if rung != present}
    sds = {rung: SURE_SDS_DEEPER if rung > present else SURE_SDS for rung in gains}
    surely = [rung for rung, gain in gains.items() if gain.log_ratio - sds[rung] * gain.sd > least]
    if not surely:
        return None
    best = max(surely, key=lambda rung: gains[rung].log_ratio)
    return Wish(best, gains[best], False)


def together(forecast: Forecast, depths: tuple[int, ...], main: int | None) -> tuple[int, ...]:
    """Return the depths to publish: the neighbours of the loaded range `main` draft only if it does.

    If the drafter is skipped, one step at K = 0 ends drafting for all running requests. A load that alternates between
    a range that drafts and a range that does not would pay for drafts and rarely have any.
    """
    if main is None or not forecast.settings.drafter_skipped_at_zero:
        return depths
    handed_out = list(depths)
    for index in (main - 1, main + 1):
        if 0 <= index < len(depths) and (depths[index] > 0) != (depths[main] > 0):
            # No deeper than the inter-token target allows in that range.
            allowed = allowed_depths(forecast, index, depths[index])
            handed_out[index] = max((rung for rung in allowed if rung <= depths[main]), default=depths[index])
    return tuple(handed_out)
