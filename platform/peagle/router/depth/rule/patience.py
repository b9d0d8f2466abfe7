"""When one batch range changes its K: only for a gain that is worth it, is there twice, and comes not too often."""

from dataclasses import dataclass, replace
from math import inf, log1p

from peagle.router.depth.estimate.forecast import Forecast, Gain
from peagle.router.depth.settings import DepthSettings

# A depth that an inter-token target rules out comes back only if it keeps this much distance.
_LATENCY_MARGIN = 0.95

# The share of the gain asked for below which a gain is nothing; above, it counts by the square of its share.
_SMALL_GAIN = 0.5


@dataclass(frozen=True, slots=True)
class RangeState:
    """What the rule remembers of one batch range.

    Attributes:
        depth: Its K, probes aside.
        changed_s: When that changed last.
        rising: Whether it rose then.
        wanted: 1 or -1 while a deeper or shallower K promises more, else 0; `seen` says in how many reports running,
            of which those with a small gain count for less.
        allowance: Changes that may still be made, as of `allowance_s`.
    """

    depth: int
    allowance: float
    changed_s: float = -inf
    rising: bool = False
    wanted: int = 0
    seen: float = 0.0
    allowance_s: float = -inf


@dataclass(frozen=True, slots=True)
class Wish:
    """The depth that a range should have.

    Attributes:
        depth: That one.
        gain: What it promises.
        weight: 1 for a gain that is worth a change; less for a smaller one, which therefore must last longer.
        forced: Whether the present depth breaks the inter-token target.
    """

    depth: int
    gain: Gain
    weight: float
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
    """Return the depth worth changing to; None if the present one is as good."""
    rungs = allowed_depths(forecast, index, present)
    best = max(rungs, key=lambda rung: forecast.log_yield(index, rung))
    if best == present:
        return None
    gain, forced = forecast.gain(index, present, best), present not in rungs
    worth = 1.0 if forced else min(1.0, sure(gain, present, best) / log1p(forecast.settings.gain_ratio))
    return Wish(best, gain, worth * worth, forced) if worth > _SMALL_GAIN else None


def sure(gain: Gain, before: int, after: int) -> float:
    """The logarithm of what a change yields: for a deeper one less one standard deviation, for its acceptance and its
    cost are the less known ones.
    """
    return gain.log_ratio if after < before else gain.log_ratio - gain.sd


def note(state: RangeState, wished: Wish | None) -> RangeState:
    """Remember for how many reports running the wish has had its direction."""
    if wished is None:
        return replace(state, wanted=0, seen=0)
    direction = 1 if wished.depth > state.depth else -1
    return replace(state, wanted=direction, seen=wished.weight + (state.seen if direction == state.wanted else 0.0))


def may_move(state: RangeState, settings: DepthSettings, now_s: float) -> bool:
    """Whether the wish has lasted, and the last change lies back far enough. A climb goes on with every report."""
    if is_climbing(state, settings, now_s):
        return True
    lasted = state.seen >= settings.confirmations
    return lasted and now_s - state.changed_s >= settings.dwell_s and refilled(state, settings, now_s).allowance >= 1.0


def is_climbing(state: RangeState, settings: DepthSettings, now_s: float) -> bool:
    return state.rising and state.wanted > 0 and now_s - state.changed_s < settings.dwell_s


def moved(state: RangeState, depth: int, settings: DepthSettings, now_s: float) -> RangeState:
    """The range after a change to `depth`, which uses up one of its allowance unless it goes on with a climb."""
    cost = 0.0 if is_climbing(state, settings, now_s) else 1.0
    return replace(
        charged(state, cost, settings, now_s),
        depth=depth,
        changed_s=now_s,
        rising=depth > state.depth,
        wanted=0,
        seen=0,
    )


def next_depth(forecast: Forecast, index: int, present: int, wished: int) -> int:
    """Straight down, and up to what was measured at these batch sizes; else up by one rung."""
    if wished < present or forecast.cost.measured((index, wished)):
        return wished
    return min(rung for rung in forecast.settings.rungs if rung > present)


def together(forecast: Forecast, depths: tuple[int, ...], main: int | None) -> tuple[int, ...]:
    """The depths as handed out: the ranges on both sides of the load, `main`, draft if it does, and else do not.

    Where the drafter is skipped, one step at K = 0 ends the drafts of all who run: a load that goes back and forth
    between a range that drafts and one that does not would pay for drafts and seldom have any.
    """
    if main is None or not forecast.settings.drafter_skipped_at_zero:
        return depths
    together_ = list(depths)
    for index in (main - 1, main + 1):
        if 0 <= index < len(depths) and (depths[index] > 0) != (depths[main] > 0):
            # No deeper than the inter-token target allows there.
            allowed = allowed_depths(forecast, index, depths[index])
            together_[index] = max((rung for rung in allowed if rung <= depths[main]), default=depths[index])
    return tuple(together_)


def charged(state: RangeState, changes: float, settings: DepthSettings, now_s: float) -> RangeState:
    """The range after so many changes were used up."""
    filled = refilled(state, settings, now_s)
    return replace(filled, allowance=max(0.0, filled.allowance - changes))


def refilled(state: RangeState, settings: DepthSettings, now_s: float) -> RangeState:
    gone_s = max(0.0, now_s - state.allowance_s)
    allowance = min(settings.changes_at_once, state.allowance + gone_s * settings.changes_per_minute / 60.0)
    return replace(state, allowance=allowance, allowance_s=now_s)
