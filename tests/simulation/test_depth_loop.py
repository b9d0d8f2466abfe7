"""The depth rule with a replica whose acceptance and step times are known, in simulated time."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sin
from typing import Any

import numpy as np
import pytest

from peagle.router.depth import (
    DEVICES,
    TARGETS,
    AcceptancePrior,
    Cause,
    CostPrior,
    DepthSettings,
    Mode,
    roofline_prior,
)
from peagle.simulator.depth_loop import Loop, WholeRule
from peagle.simulator.depth_replica import CODE, NOISE, PROSE, OpenReplica, Replica
from support.depth.depth_reports import QUICK_CPU

SETTINGS = DepthSettings(
    depth_max=7, depth_static=7, batch_max=32, cost=QUICK_CPU, acceptance=AcceptancePrior.geometric(7)
)
CURVES = {"code": CODE, "prose": PROSE, "noise": NOISE}
BATCHES = (1, 2, 4, 8, 16, 32)
Curve = Sequence[float]


def settings_for(replica: Replica, cost: CostPrior = QUICK_CPU) -> DepthSettings:
    return replace(SETTINGS, cost=cost, depth_static=replica.depth_static, drafter_skipped_at_zero=replica.skips)


def looped(replica: Replica, cost: CostPrior = QUICK_CPU, calibrated: bool = False) -> Loop[WholeRule]:
    return Loop(replica, WholeRule(settings_for(replica, cost)), SETTINGS.batch_max if calibrated else 0)


def steady(curve: Curve, batch_size: int, **more: object) -> Replica:
    return Replica(lambda _: curve, lambda _: batch_size, **more)  # type: ignore[arg-type]


def phased(phases: Sequence[tuple[float, int, Curve]], **more: object) -> Replica:
    """Return a replica whose batch size and prompts change: (until when, batch size, acceptance)."""

    def now(now_s: float) -> tuple[float, int, Curve]:
        return next((phase for phase in phases if now_s < phase[0]), phases[-1])

    return Replica(lambda t: now(t)[2], lambda t: now(t)[1], **more)  # type: ignore[arg-type]


def settled_after_s(loop: Loop[WholeRule], batch_size: int, from_s: float, until_s: float) -> float:
    """Return the time of the last step below 0.97 of the best static K's yield, ignoring probes."""
    replica = loop.replica
    _, best = replica.best(batch_size, from_s)
    probing = [(at_s, plan.mode is Mode.PROBING) for at_s, plan in loop.plans]
    last_s, position, in_probe = from_s, 0, False
    for now_s, size, depth in replica.used:
        while position < len(probing) and probing[position][0] < now_s:
            in_probe = probing[position][1]
            position += 1
        poor = size == batch_size and replica.tokens_per_s(size, depth, from_s) < 0.97 * best
        if from_s <= now_s < until_s and poor and not in_probe:
            last_s = now_s
    return last_s - from_s


@pytest.mark.parametrize("skips", [False, True], ids=["always_drafts", "skips_at_zero"])
@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_it_reaches_97_percent_of_the_best_static_k(curve: Curve, batch_size: int, skips: bool) -> None:
    replica = steady(curve, batch_size, tails=not skips, skips=skips, output_tokens=2000)
    best, _ = replica.best(batch_size, 0.0)
    loop = looped(replica).run(10.0)
    reached = loop.tokens_per_s(10.0, 50.0)
    still = steady(curve, batch_size, tails=False, skips=skips, output_tokens=2000, depth_static=best)
    still.run(20.0)
    assert reached >= 0.97 * still.tokens / still.now_s
    assert loop.rule.state.guard.trips == 0


@pytest.mark.parametrize(("output_tokens", "best"), [(16, 0), (400, 3)])
def test_it_counts_what_the_drafter_costs_over_prompts(output_tokens: int, best: int) -> None:
    """A batch that decodes faster with drafts is served faster without, if prompts are long and answers short."""

    def step_s(batch_size: int, tokens: int, drafting: int) -> float:
        return 20e-3 + (5e-3 if drafting else 0.0) + 0.2e-3 * tokens

    replica = steady(PROSE, 16, skips=True, tails=False, output_tokens=output_tokens, prompt_tokens=150, step_s=step_s)
    assert replica.best(16, 0.0)[0] == best
    loop = looped(replica).run(30.0)
    reached = loop.tokens_per_s(30.0, 90.0)
    still = steady(
        PROSE, 16, skips=True, tails=False, output_tokens=output_tokens, prompt_tokens=150, step_s=step_s,
        depth_static=best,
    )  # fmt: skip
    still.run(60.0)
    assert reached >= 0.97 * still.tokens / still.now_s


@pytest.mark.parametrize(("curve", "per_second"), [(CODE, 6), (PROSE, 8), (NOISE, 6)], ids=["code", "prose", "noise"])
def test_requests_that_come_at_random_take_no_longer_than_at_the_best_static_k(curve: Curve, per_second: float) -> None:
    """The batch size then changes every few steps, and trials rarely see a steady load."""

    def replica(depth: int) -> OpenReplica:
        return OpenReplica(curve, per_second, skips=True, tails=False, output_tokens=64, depth_static=depth)

    still = [replica(depth) for depth in (0, 1, 2, 3, 5, 7)]
    for one in still:
        one.run(300.0)
    followed = replica(7)
    looped(followed).run(300.0)
    assert 0.97 * followed.requests_s <= min(one.requests_s for one in still)


def test_the_best_k_crosses_from_seven_to_zero_with_load_on_this_cost() -> None:
    """Ensures that the tests here have a crossing to find."""
    replica = steady(PROSE, 1, skips=True)
    assert [replica.best(batch_size, 0.0)[0] for batch_size in BATCHES] == [7, 7, 3, 0, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_it_settles_within_three_seconds_of_a_shift_of_load_or_prompts(seed: int) -> None:
    phases = [
        (15.0, 1, CODE),
        (30.0, 32, CODE),
        (45.0, 1, CODE),
        (60.0, 8, PROSE),
        (75.0, 8, NOISE),
        (90.0, 1, CODE),
        (105.0, 4, NOISE),
        (120.0, 4, CODE),
    ]
    replica = phased(phases, spread=0.3, seed=seed)
    loop = looped(replica).run(120.0)
    begin_s = 0.0
    for until_s, batch_size, _ in phases:
        assert settled_after_s(loop, batch_size, begin_s, until_s) <= 3.0
        begin_s = until_s


SHIFTING = (
    (15.0, 1, CODE),
    (30.0, 32, NOISE),
    (45.0, 1, PROSE),
    (60.0, 16, PROSE),
    (75.0, 2, CODE),
    (90.0, 32, PROSE),
)


def mean_share_of_best(replica: Replica, serve: Callable[[float], object]) -> float:
    """Return tokens/s over that of the best static K, averaged over the phases, since their scales differ."""
    shares, tokens, begin_s = [], 0, 0.0
    for until_s, batch_size, _ in SHIFTING:
        serve(until_s)
        best = replica.best(batch_size, begin_s)[1]
        shares.append((replica.tokens - tokens) / (replica.now_s - begin_s) / best)
        tokens, begin_s = replica.tokens, replica.now_s
    return sum(shares) / len(shares)


def test_across_a_shifting_load_it_beats_every_static_k_by_five_percent() -> None:
    static = {}
    for depth in (0, 1, 2, 3, 5, 7):
        replica = phased(SHIFTING, skips=True, tails=False, depth_static=depth)
        static[depth] = mean_share_of_best(replica, replica.run)
    replica = phased(SHIFTING, skips=True, tails=False)
    assert mean_share_of_best(replica, looped(replica).run) >= 1.05 * max(static.values())


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("batch_size", [1, 4, 32])
def test_with_steady_input_k_changes_at_most_twice_a_minute(batch_size: int, curve: Curve) -> None:
    """Requests differ, machine and drafts scatter; probes count."""
    replica = steady(curve, batch_size, skips=True, tails=False, spread=0.3)
    loop = looped(replica).run(330.0)
    assert loop.changes(30.0, 330.0) <= 10
    # Three if a change with predicted gain follows a probe.
    assert all(loop.changes(begun_s, begun_s + 60.0) <= 3 for begun_s in range(30, 271))


def test_k_0_is_never_permanent() -> None:
    """Nothing is drafted at K = 0, so only probes can show that the prompts have become predictable."""
    replica = phased([(60.0, 1, NOISE), (200.0, 1, CODE)], skips=True, tails=False)
    loop = looped(replica).run(60.0)
    assert loop.rule.state.plan is not None
    assert loop.rule.state.depths[0] == 0
    loop.run(60.0 + SETTINGS.trial_every_s + 5.0)
    assert loop.rule.state.depths[0] == 7
    assert any(change.cause is Cause.PROBE_ADOPTED for change in loop.rule.state.log)


def test_off_returns_within_three_seconds_where_cut_tails_are_scored() -> None:
    def dear_draft(batch_size: int, tokens: int, drafting: int) -> float:
        """Verification is so expensive that K = 0 is best for noise, although the drafter runs."""
        return 2e-3 + 0.5e-3 * tokens

    replica = phased([(30.0, 4, NOISE), (60.0, 4, CODE)], step_s=dear_draft)
    assert (replica.best(4, 0.0)[0], replica.best(4, 40.0)[0] > 0) == (0, True)
    loop = looped(replica).run(60.0)
    assert settled_after_s(loop, 4, 30.0, 60.0) <= 3.0


def test_probes_at_zero_take_a_small_share_of_the_time() -> None:
    replica = steady(NOISE, 8, skips=True, tails=False)
    loop = looped(replica).run(120.0)
    used = loop.depths_used(10.0, 120.0)
    assert 0 < sum(depth > 0 for depth in used) / len(used) < 0.03


def test_a_load_that_comes_for_seconds_does_not_pay_for_a_probe_each_time() -> None:
    def load(now_s: float) -> int:
        return 32 if now_s % 20.0 < 2.0 else 0

    replica = Replica(lambda _: PROSE, load, skips=True, tails=False, output_tokens=48)
    assert replica.best(32, 0.0)[0] == 0
    looped(replica).run(400.0)
    used = [depth for now_s, _, depth in replica.used if now_s > 100.0]
    assert sum(depth > 0 for depth in used) / len(used) < 0.02


def test_requests_that_cannot_draft_again_do_not_prevent_recovery() -> None:
    """After K = 0 with a skipped drafter, only new requests draft: a probe sees few drafts, and slowly."""
    replica = phased([(40.0, 2, NOISE), (140.0, 2, CODE)], skips=True, tails=False, output_tokens=800)
    loop = looped(replica).run(140.0)
    assert loop.rule.state.depths[1] >= 5


def test_answers_that_all_end_together_do_not_prevent_recovery() -> None:
    """Requests running at K = 0 draft no more. If all end at once, this lasts as long as their answers."""

    class Together(Replica):
        def answers(self, count: int) -> Any:
            return np.full(count, self.output_tokens)

    def load_now(now_s: float) -> Curve:
        return NOISE if now_s < 40.0 else CODE

    replica = Together(load_now, lambda _: 2, skips=True, tails=False, output_tokens=2500)
    loop = looped(replica).run(40.0)
    assert loop.rule.state.depths[1] == 0
    loop.run(140.0)
    assert loop.rule.state.depths[1] >= 5


@pytest.mark.parametrize(
    ("curve", "sizes", "slower", "quicker"), [(PROSE, (24, 32), 20.0, 0.35), (CODE, (20, 32), 8.0, 0.5)]
)
def test_a_load_that_goes_back_and_forth_around_the_crossing_keeps_its_drafts(
    curve: Curve, sizes: tuple[int, int], slower: float, quicker: float
) -> None:
    """One step at K = 0 ends the drafts of all running requests, so neighbouring ranges must agree with the load's."""

    def step_s(batch_size: int, tokens: int, drafting: int) -> float:
        draft_s = 1.75e-3 + 0.15e-3 * drafting if drafting else 0.0
        return slower * 0.45e-3 + 0.15e-3 * batch_size + draft_s + max(2.2e-3, quicker * 0.14e-3 * tokens)

    def serving(depth_static: int) -> Replica:
        rng, until_s, size = random.Random(0), 0.0, sizes[1]

        def load(now_s: float) -> int:
            nonlocal until_s, size
            if now_s >= until_s:
                size = rng.choice(sizes) if rng.random() < 0.8 else rng.randint(*sizes)
                until_s = now_s + rng.uniform(0.1, 0.6)
            return size

        return Replica(
            lambda _: curve, load, step_s=step_s, skips=True, tails=False, prompt_tokens=60, spread=0.3,
            depth_static=depth_static,
        )  # fmt: skip

    static = []
    for depth in (0, 1, 2, 3, 5, 7):
        still = serving(depth)
        still.run(60.0)
        static.append(still.tokens / still.now_s)
    replica = serving(7)
    loop = looped(replica).run(20.0)
    assert loop.tokens_per_s(20.0, 80.0) >= 0.97 * max(static)


@pytest.mark.parametrize("trial", range(10))
def test_a_prior_that_is_far_off_is_corrected(trial: int) -> None:
    """Each coefficient is off by a factor of about 1.5, and the machine's speed varies by a third."""
    rng = random.Random(trial)
    names = ("step_s", "weights_s", "sequence_s", "token_s", "draft_s", "draft_sequence_s")
    prior = replace(QUICK_CPU, **{name: getattr(QUICK_CPU, name) * rng.lognormvariate(0.0, 0.4) for name in names})
    curve, batch_size = rng.choice(tuple(CURVES.values())), rng.choice(BATCHES)
    skips, speed = rng.random() < 0.5, rng.choice((0.5, 1.0, 2.0))

    def serving(depth_static: int) -> Replica:
        pace = lambda now_s: speed * (1.0 + 0.33 * sin(now_s / 10.0))  # noqa: E731
        return steady(curve, batch_size, tails=not skips, skips=skips, depth_static=depth_static, pace=pace)

    replica = serving(7)
    loop = looped(replica, prior).run(15.0)
    before, from_s = replica.tokens, replica.now_s
    loop.run(15.0 + 62.8)
    still = serving(replica.best(batch_size, 0.0)[0])
    still.run(15.0)
    still_before, still_s = still.tokens, still.now_s
    still.run(15.0 + 62.8)
    best = (still.tokens - still_before) / (still.now_s - still_s)
    assert (replica.tokens - before) / (replica.now_s - from_s) >= 0.95 * best


def test_a_best_k_that_rises_again_with_load_is_found() -> None:
    """A mixture of experts: drafting is most expensive in the middle, where it still activates experts.

    With some seeds the rule stays at K = 2 there, 5 % below K = 1.
    """

    def experts_step_s(batch_size: int, tokens: int, drafting: int) -> float:
        awake = 1.0 - (1.0 - 4 / 32) ** tokens
        return 1.0e-3 + (0.5e-3 if drafting else 0.0) + 14.0e-3 * awake + 0.01e-3 * batch_size

    phases = [(20.0, 1, PROSE), (40.0, 4, PROSE), (60.0, 32, PROSE)]
    replica = phased(phases, step_s=experts_step_s, tails=True, seed=2)
    best = [replica.best(batch_size, 0.0)[0] for _, batch_size, _ in phases]
    assert best[0] < best[-1]
    loop = looped(replica, roofline_prior(TARGETS["gpt-oss-20b"], DEVICES["B200"]))
    begin_s = 0.0
    for until_s, batch_size, _ in phases:
        loop.run(begin_s + 8.0)
        rate = loop.tokens_per_s(begin_s + 8.0, until_s)
        # The prior belongs to a machine several times as fast.
        assert rate >= 0.95 * replica.best(batch_size, 0.0)[1]
        begin_s = until_s


def test_goodput_that_stays_short_of_its_prediction_means_the_static_k() -> None:
    """From 20 s on a third of the accepted drafts is lost on the way to the clients."""
    replica = steady(CODE, 4, output_tokens=2000)
    loop = looped(replica).run(20.0)
    assert loop.rule.state.guard.trips == 0
    replica.delivers = 0.5
    loop.run(50.0)
    assert loop.rule.state.guard.trips == 1
    fallen = [plan for _, plan in loop.plans if plan.mode is Mode.FALLBACK]
    assert "of its prediction" in fallen[0].reason
    assert {plan.table.depth_at(4) for plan in fallen} == {7}


def test_short_answers_that_cut_their_last_drafts_off_do_not_alarm_the_guard() -> None:
    replica = steady(CODE, 8, output_tokens=24)
    loop = looped(replica).run(60.0)
    assert loop.rule.state.guard.trips == 0
    assert loop.rule.state.delivery.ratio < 0.95


@pytest.mark.parametrize("batch_size", BATCHES)
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_a_calibrated_replica_finds_its_depth_though_the_prior_is_of_another_machine(
    curve: Curve, batch_size: int
) -> None:
    """The prior is for experts on a large GPU. Without calibration prose at batch 16 stays at 0.68 of the best."""
    prior = roofline_prior(TARGETS["gpt-oss-20b"], DEVICES["B200"])
    replica = steady(curve, batch_size, skips=True, output_tokens=512)
    loop = looped(replica, prior, calibrated=True).run(30.0)
    _, best = replica.best(batch_size, 0.0)
    assert replica.tokens / replica.now_s >= 0.94 * best
    first_sight = [
        change
        for _, plan in loop.plans
        for change in plan.changes
        if change.cause is Cause.PROBE and plan.mode is Mode.PROBING
    ]
    assert len(first_sight) <= SETTINGS.trials_at_once
