"""Which depth a batch range should have: the one that promises the most tokens/s, if that is sure enough."""

from dataclasses import dataclass
from math import log1p

from peagle.router.depth.estimate.forecast import Forecast, Gain

# A depth that an inter-token target rules out comes back only if it keeps this much distance.
_LATENCY_MARGIN = 0.95
# A change must promise the least gain by so many standard deviations; more for a deeper one, of which acceptance and
# cost are known less.
SURE_SDS, SURE_SDS_DEEPER = 0.1, 0.25


@dataclass(frozen=True, slots=True)
class Wish:
    """A depth worth changing to.

    Attributes:
        depth: That one.
        gain: What it promises.
        forced: Whether the present depth breaks the inter-token target.
    """

    depth: int
    gain: Gain
    forced: bool


def allowed_depths(forecast: Forecast, index: int, present: int) -> tuple[int, ...]:
    """Return the rungs within the operator's bounds whose step keeps the inter-token target.

    If none keeps it, the one with the quickest step is left.
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
    """Return the depth worth changing to; None if the present one is as good.

    Of the depths that are surely better, the one that promises the most: a neighbour that is no better hides none.
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
    """Return the depths as handed out: the ranges on both sides of the load, `main`, draft if it does, and else do not.

    Where the drafter is skipped, one step at K = 0 ends the drafts of all who run: a load that goes back and forth
    between a range that drafts and one that does not would pay for drafts and seldom have any.
    """
    if main is None or not forecast.settings.drafter_skipped_at_zero:
        return depths
    handed_out = list(depths)
    for index in (main - 1, main + 1):
        if 0 <= index < len(depths) and (depths[index] > 0) != (depths[main] > 0):
            # No deeper than the inter-token target allows there.
            allowed = allowed_depths(forecast, index, depths[index])
            handed_out[index] = max((rung for rung in allowed if rung <= depths[main]), default=depths[index])
    return tuple(handed_out)
