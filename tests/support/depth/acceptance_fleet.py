"""What dispatch by acceptance gives a fleet, half of whose requests are code and half noise, over `soonest`.

Run it with `tests` and `platform` on the path; it takes a few minutes.

    python -m support.depth.acceptance_fleet
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

from peagle.router.dispatch import POLICIES, SOONEST
from peagle.simulator.depth_loop import WholeRule
from peagle.simulator.drafting_fleet import DraftingReplica, QueuedReplica, code_and_noise
from peagle.simulator.simulated_fleet import ByPolicy, Dispatch, Job, Simulation
from support.depth.depth_scenarios import settings_of
from support.depth.step_costs import COSTS, CURVES

# Acceptance of noise relative to code at each position, as measured.
LEAN = -0.6
ANSWER_TOKENS, PROMPT_TOKENS = 200, 200
FROM_S, UNTIL_S = 15.0, 45.0
BY_ACCEPTANCE, APART = "by-acceptance", "apart"

CELLS = (
    *(("120B-H200", replicas, 8) for replicas in (2, 4, 8)),
    ("120B-H200", 2, 16), ("120B-B200", 4, 8),
    ("30B-A3B-H200", 2, 8), ("30B-A3B-B200", 4, 8), ("30B-A3B-B200", 4, 32),
    ("20B-H200", 4, 4), ("20B-H200", 4, 16), ("20B-B200", 4, 64),
    ("8B-H200-measured", 4, 8), ("8B-H200-measured", 2, 64),
)  # fmt: skip
"""Step times, replicas, and concurrent requests per replica."""


@dataclass(frozen=True)
class Served:
    tokens_per_s: float
    ttft_s_p95: float


class Apart(Dispatch):
    """Knows each request's kind: noise goes to the first half of the fleet, code to the others."""

    def choose(self, job: Job, now_s: float, replicas: Sequence[Any]) -> str:
        half = len(replicas) // 2
        mine = replicas[:half] if job.lean < 0.0 else replicas[half:]
        chosen: str = min(mine, key=lambda replica: replica.ongoing).replica_id
        return chosen


WAYS: dict[str, Callable[[Sequence[Any]], Dispatch]] = {
    SOONEST.name: ByPolicy,
    BY_ACCEPTANCE: partial(ByPolicy, policy=POLICIES[BY_ACCEPTANCE]),
    APART: Apart,
}


def replica_of(name: str, cost: str, seed: int) -> DraftingReplica:
    engine = QueuedReplica(
        conditional=lambda _: CURVES["HumanEval"], step_s=COSTS[cost], skips=True, tails=False, by_request=True,
        output_tokens=ANSWER_TOKENS, prompt_tokens=PROMPT_TOKENS, prompt_token_s=2e-5, step_sd=0.05,
        stalls_ratio=0.01, seed=seed,
    )  # fmt: skip
    return DraftingReplica(name, engine, WholeRule(settings_of(engine)))


def served(cost: str, number: int, each: int, way: str, seed: int = 0) -> Served:
    """Return tokens/s and TTFT of a fleet under clients without pauses, after K has settled."""
    replicas = [replica_of(f"replica-{place}", cost, 100 * seed + place) for place in range(number)]
    jobs = code_and_noise(number * each, 1000, seed, PROMPT_TOKENS, ANSWER_TOKENS, LEAN)
    outcome = Simulation(replicas, WAYS[way](replicas)).run(jobs, UNTIL_S)
    rate = 0.0
    for replica in replicas:
        told = [each for each in replica.told if each[0] >= FROM_S]
        (began_s, before), (ended_s, after) = told[0], told[-1]
        rate += (after - before) / (ended_s - began_s)
    first = sorted(
        job.first_token_s - job.arrives_s
        for job in outcome.jobs
        if job.first_token_s is not None and job.arrives_s >= FROM_S
    )
    return Served(rate, first[int(0.95 * len(first))])


def compared(cost: str, number: int, each: int, way: str, seeds: Sequence[int] = (0, 1)) -> tuple[float, float]:
    """Return tokens/s and the 95th percentile of TTFT, relative to `soonest`."""
    pairs = [(served(cost, number, each, way, seed), served(cost, number, each, SOONEST.name, seed)) for seed in seeds]
    return (
        fmean(ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs),
        fmean(ours.ttft_s_p95 / theirs.ttft_s_p95 for ours, theirs in pairs),
    )


def main() -> None:
    print("| step times | replicas | requests each | by acceptance | TTFT p95 | apart | TTFT p95 |\n|" + " --- |" * 7)
    for cell in CELLS:
        ours, best = (compared(*cell, way) for way in (BY_ACCEPTANCE, APART))
        print(
            "| " + " | ".join(map(str, cell)) + " | {:.2f} | {:.2f} | {:.2f} | {:.2f} |".format(*ours, *best),
            flush=True,
        )


if __name__ == "__main__":
    main()
