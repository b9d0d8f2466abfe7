"""The acceptance estimate is right on known curves, whatever K was used meanwhile."""

import random
from itertools import accumulate, pairwise
from operator import mul

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine.depth.step_sums import CellSums
from peagle.router.depth.estimate.acceptance import Acceptance, Counts, counts_of, observe, pooled
from peagle.router.depth.settings import AcceptancePrior
from peagle.router.snapshot import StepCell
from support.depth.step_cells import cells

DEPTH_MAX = 7
EMBEDDED = (0.69, 0.565, 0.74, 0.79, 0.65, 0.93, 0.71)
GPT_OSS_CODE = (0.935, *(0.62,) * 6)
GPT_OSS_CHAT = (0.83, *(0.725,) * 6)
HALF_LIFE = 2000.0


def survival_of(conditional: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(accumulate(conditional, mul))


def drafted_cell(
    conditional: tuple[float, ...], depth: int, drafts: int, rng: random.Random, tails: bool, batch_size: int = 4
) -> StepCell:
    """Return the counts of `drafts` drafts verified to `depth`, with or without scored tails."""
    counts = {name: [0] * DEPTH_MAX for name in ("drafted", "accepted", "tail_reached", "tail_matched")}
    for _ in range(drafts):
        right = 0
        while right < DEPTH_MAX and rng.random() < conditional[right]:
            right += 1
        for j in range(DEPTH_MAX):
            if j < depth:
                counts["drafted"][j] += 1
                counts["accepted"][j] += right > j
            elif tails:
                counts["tail_reached"][j] += right >= j
                counts["tail_matched"][j] += right > j
    plain = {name: tuple(values) for name, values in counts.items()}
    tokens = drafts + sum(counts["accepted"])
    return StepCell(batch_size, depth, max(1, drafts // batch_size), 0.5, tokens, drafts if depth else 0, **plain)


def run(
    conditional: tuple[float, ...],
    depths: list[int],
    drafts: int,
    seed: int,
    tails: bool,
    state: Acceptance | None = None,
) -> Acceptance:
    rng = random.Random(seed)
    state = state or Acceptance.start(AcceptancePrior.geometric(DEPTH_MAX))
    for report in range(drafts // 50):
        cell = drafted_cell(conditional, depths[report % len(depths)], 50, rng, tails)
        state = observe(state, counts_of([cell], DEPTH_MAX), HALF_LIFE, report * 0.5)
    return state


def error(state: Acceptance, conditional: tuple[float, ...]) -> float:
    return max(abs(a - b) for a, b in zip(state.survival, survival_of(conditional), strict=True))


@pytest.mark.parametrize("tails", [True, False])
@pytest.mark.parametrize("curve", [EMBEDDED, GPT_OSS_CODE, GPT_OSS_CHAT], ids=["embedded", "code", "chat"])
def test_after_two_thousand_drafts_each_position_is_within_three_hundredths_while_k_varies(
    curve: tuple[float, ...], tails: bool
) -> None:
    """Holds in nine traces of ten; the rest is chance. Without tails not all drafts reach the deep positions."""
    depths = [0, 7, 1, 3, 5, 2, 7] if tails else [7, 3, 7, 5, 7, 2, 7]
    errors = sorted(error(run(curve, depths, 2000, seed, tails), curve) for seed in range(10))
    assert errors[8] <= 0.03
    assert errors[9] <= 0.04


def test_without_the_right_denominator_the_same_counts_would_be_far_off() -> None:
    """Dividing by all drafts fails on the same trace, which shows that the test above can fail."""
    rng = random.Random(0)
    cells = [drafted_cell(EMBEDDED, depth, 500, rng, tails=False) for depth in (1, 2, 3, 7)]
    naive = [sum(cell.accepted[j] for cell in cells) / 2000 for j in range(DEPTH_MAX)]
    assert abs(naive[3] - survival_of(EMBEDDED)[3]) > 0.1


def test_a_shallow_k_moves_the_deep_positions_along_with_the_first() -> None:
    """Deep positions rest on conditional ratios, so they follow the observed shallow positions."""
    state = run(GPT_OSS_CODE, [7], 2000, 1, tails=False)
    worse = (0.4, *GPT_OSS_CODE[1:])
    state = run(worse, [2], 3000, 2, tails=False, state=state)
    assert error(state, worse) < 0.05


def test_cut_tails_alone_suffice() -> None:
    state = run(EMBEDDED, [0], 2000, 3, tails=True)
    assert error(state, EMBEDDED) <= 0.04


def test_a_shift_of_prompts_is_followed_within_two_reports_but_scatter_is_not_a_shift() -> None:
    state = run(GPT_OSS_CODE, [7], 4000, 4, tails=False)
    assert state.shifts == 0
    state = run((0.3, *(0.3,) * 6), [7], 100, 5, tails=False, state=state)
    assert state.shifts == 1
    assert state.survival[0] < 0.5


def test_the_past_fades_by_drafts() -> None:
    counts = Counts((1000.0,) * DEPTH_MAX, (500.0,) * DEPTH_MAX)
    state = Acceptance(counts, AcceptancePrior.geometric(DEPTH_MAX), dispersion=6.0)
    after = observe(state, Counts((2000.0,) * DEPTH_MAX, (1000.0,) * DEPTH_MAX), HALF_LIFE, 0.0)
    assert after.counts.at_risk[0] == pytest.approx(500.0 + 2000.0)


def test_after_a_gap_the_past_weighs_little() -> None:
    state = run(GPT_OSS_CODE, [7], 2000, 6, tails=False)
    rng = random.Random(7)
    cell = drafted_cell((0.3,) * DEPTH_MAX, 7, 100, rng, tails=False)
    soon = observe(state, counts_of([cell], DEPTH_MAX), HALF_LIFE, 20.0)
    late = observe(state, counts_of([cell], DEPTH_MAX), HALF_LIFE, 60.0)
    assert late.survival[0] < 0.55 < soon.survival[0]


def test_a_new_replica_starts_from_its_fleet() -> None:
    fallback = AcceptancePrior.geometric(DEPTH_MAX)
    fleet = [run(EMBEDDED, [7], 2000, seed, tails=False) for seed in range(3)]
    new = Acceptance.start(pooled(fleet, fallback, drafts=50.0))
    assert error(new, EMBEDDED) < 0.03
    other = run(GPT_OSS_CODE, [7], 2000, 9, tails=False, state=new)
    assert error(other, GPT_OSS_CODE) < 0.05


def test_drafts_that_a_grammar_cuts_bias_nothing() -> None:
    """Free text is right with 0.9 at each position, constrained text with 0.2 and nine in ten of its drafts cut."""
    rng = random.Random(7)
    sums = CellSums(8, 5, DEPTH_MAX)
    right = reached = 0
    for constrained in [False] * 600 + [True] * 1400:
        drafted = 1 if constrained and rng.random() < 0.9 else 5
        accepted = 0
        while accepted < drafted and rng.random() < (0.2 if constrained else 0.9):
            accepted += 1
        sums.add_draft(drafted, accepted)
        right += accepted >= 2
        reached += drafted >= 2 and accepted >= 1
    sums.add_step(1.0, 4000, 0, 0)
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in sums.plain().items()}
    counts = counts_of([StepCell(**plain)], DEPTH_MAX)
    assert counts.survived[1] / counts.at_risk[1] == pytest.approx(right / reached)


@given(st.lists(st.lists(cells(), max_size=4), max_size=6))
def test_whatever_is_counted_survival_never_rises_and_stays_a_probability(reports: list[list[StepCell]]) -> None:
    state = Acceptance.start(AcceptancePrior.geometric(DEPTH_MAX))
    for now_s, report in enumerate(reports):
        state = observe(state, counts_of(report, DEPTH_MAX), HALF_LIFE, float(now_s))
        survival = (1.0, *state.survival)
        assert all(0.0 <= later <= earlier <= 1.0 for earlier, later in pairwise(survival))
        assert all(variance > 0.0 for variance in state.variances)
