"""What each part of the depth rule is worth: the whole rule without it, over simulated scenarios.

Run it with `tests` and `platform` on the path; it takes half an hour on one core.

    python -m support.depth.depth_ablation
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from math import inf, sin
from statistics import fmean
from typing import Any
from unittest.mock import patch

from peagle.router.depth import DepthSettings
from peagle.router.depth.estimate import acceptance, busy, forecast, prompt_cost, sharing, step_cost
from peagle.router.depth.rule import choice, guard, state, trial, tuner
from peagle.simulator.depth_loop import Rule, WholeRule
from support.depth.depth_scenarios import CURVES, Scenario, SmallRule, mixed, replica_of, served, shifted, steady

Patches = Sequence[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Kind:
    """Scenarios of one kind, each with its seeds."""

    name: str
    scenarios: Sequence[Scenario]
    seeds: Sequence[int] = (0, 2)


def _swinging(now_s: float) -> int:
    return (24, 32, 48)[int(now_s / 0.3) % 3]


def kinds() -> Iterator[Kind]:
    costs = ("8B-H200-measured", "120B-H200", "30B-A3B-B200", "20B-H200-graphs")
    loads = (1, 8, 32, 128)
    yield Kind("steady", [steady(cost, curve, load) for cost, curve, load in product(costs, CURVES, loads)], (2,))
    alien = [steady(cost, curve, load) for cost, curve, load in product(costs[:2], ("HumanEval", "low"), (2, 16, 64))]
    yield Kind("nothing timed", [replace(each, calibrated=False) for each in alien])
    phases = "HumanEval", "low", "SPEED-Bench", "low"
    rests = {"skips": True, "tails": False}
    yield Kind("shifts, K = 0 rests", [shifted(cost, 32, *phases, each_s=45.0, **rests) for cost in costs[:2]])
    yield Kind("shifts, always drafts", [shifted(cost, load, *phases) for cost in costs[:2] for load in (4, 64)])
    short = {"output_tokens": 24, "prompt_tokens": 500}
    yield Kind("prompts", [steady(cost, "MT-Bench", load, **short) for cost in costs for load in (8, 64)])

    def breath(now_s: float) -> float:
        return 1.0 + 0.33 * sin(now_s / 5.0)

    yield Kind("machine breathes", [steady(cost, "MT-Bench", load, pace=breath) for cost in costs for load in (4, 64)])
    swings = [
        Scenario(
            f"{cost} swings", lambda seed, cost=cost: replica_of(cost, "MT-Bench", _swinging, seed=seed), 30.0, 8.0
        )
        for cost in costs
    ]
    yield Kind("load swings", swings)
    pairs = ("20B-H200-graphs", 64), ("30B-A3B-B200", 8), ("8B-H200-measured", 32)
    yield Kind("mixed, by request", [mixed(cost, "HumanEval", load) for cost, load in pairs])
    lost = [steady(cost, "MT-Bench", 8, 40.0, 8.0, delivers=0.6) for cost in costs]
    yield Kind("accepted drafts get lost", lost)


def _drift_alone(*args: Any) -> Any:
    before = args[0]
    after = _LEARN(*args)
    return replace(after, scales=(after.scales[0], *before.scales[1:]))


def _without_residual(*args: Any) -> Any:
    return replace(_LEARN(*args), residuals=args[0].residuals)


_LEARN = vars(step_cost)["_learn"]

WITHOUT: Mapping[str, Patches] = {
    "trials": [(tuner, "next_trial", lambda *_: None)],
    "trials of K = 0 that only tell the gain": [(trial, "_OFF_SD", inf)],
    "certainty asked of a gain": [(choice, "SURE_SDS", 0.0), (choice, "SURE_SDS_DEEPER", 0.0)],
    "more certainty asked of a deeper K": [(choice, "SURE_SDS_DEEPER", choice.SURE_SDS)],
    "guard": [(guard, "examine", lambda held, *_: (held, None))],
    "guard, first drafts": [(guard, "_FIRST_DRAFTS", (10**9, 10**9))],
    "guard, goodput": [(guard, "_GOODPUT_S_MIN", inf)],
    "learning the roofline's coefficients": [(step_cost, "_learn", _drift_alone)],
    "residuals": [(step_cost, "_learn", _without_residual), (step_cost, "_with_residuals", lambda kept, *_: kept)],
    "cutting outliers": [(step_cost, "_OUTLIER_SDS", 1e6)],
    "noise by a busy machine in calibration": [(step_cost, "_BUSY_SD", 0.0)],
    "shifts": [(acceptance, "_DEVIATIONS", inf)],
    "dispersion": [(acceptance, "_DISPERSION_GAIN", 0.0)],
    "forgetting after a gap": [(acceptance, "_GAP_S", inf)],
    "prompts": [(forecast.Forecast, "prompt_s", lambda *_: 0.0)],
    "what the drafter adds to prompts, learned": [(prompt_cost, "_SHARE_TOKENS", 1e12)],
    "share that is delivered": [(state.Delivery, "ratio", 1.0)],
    "where the load is, remembered": [(busy, "_LEAD", 0.0)],
    "ranges beside the load that do as it does": [(tuner, "together", lambda _, depths, __: depths)],
    "what sharing out is worth": [(sharing.Sharing, "gain_ratio", lambda *_: 1.0)],
}


def ratios(kind: Kind, rule: Callable[[DepthSettings], Rule] = WholeRule) -> list[float]:
    """Return the yield relative to the best single K, for every part of every run."""
    runs = (served(scenario, seed, rule)[0] for scenario, seed in product(kind.scenarios, kind.seeds))
    return [ratio for run in runs for ratio in run]


def main() -> None:
    every = list(kinds())
    print("| | " + " | ".join(kind.name for kind in every) + " |", "| --- |" + " --- |" * len(every), sep="\n")
    rows: dict[str, tuple[Callable[[DepthSettings], Rule], Patches]] = {"this rule": (WholeRule, ())}
    rows["small rule, 30 lines"] = SmallRule, ()
    rows |= {f"without {part}": (WholeRule, patches) for part, patches in WITHOUT.items()}
    chosen = [name for name in rows if not sys.argv[1:] or any(word in name for word in sys.argv[1:])]
    for name in chosen:
        rule, patches = rows[name]
        cells = []
        for kind in every:
            with ExitStack() as stack:
                for where, attribute, value in patches:
                    stack.enter_context(patch.object(where, attribute, value))
                found = ratios(kind, rule)
            cells.append(f"{fmean(found):.3f} {min(found):.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
