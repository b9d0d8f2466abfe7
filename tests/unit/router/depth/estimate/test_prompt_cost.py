"""Cost of prompts, from steps in which other requests also decode."""

from dataclasses import replace
from typing import Any

import pytest

from peagle.router.depth import EMBEDDED_CPU, Mode, ModelDepths, start, step
from peagle.router.depth.estimate.prompt_cost import PromptCost, observe
from peagle.router.depth.estimate.step_cost import Load, StepCost
from peagle.router.snapshot import PromptCell, PromptStats, StepReport, StepStats
from support.depth.depth_reports import SETTINGS, STATIC, good_cell

COST = StepCost.start(EMBEDDED_CPU)


def steps(drafter: bool, token_s: float, prompt_tokens: int = 100_000, batch_size: int = 8) -> PromptCell:
    """Return a hundred steps of known cost; the decoding part takes what the model predicts."""
    decoding_s = COST.step_s(Load(batch_size, batch_size, batch_size if drafter else 0.0)) if batch_size else 0.0
    seconds = 100 * decoding_s + prompt_tokens * token_s
    return PromptCell(drafter, batch_size > 0, 100, seconds, prompt_tokens, 100 * batch_size, 0)


def learned(*cells: PromptCell, prompt_tokens: int = 3000, output_tokens: int = 1000) -> PromptCost:
    return observe(PromptCost(), PromptStats(cells, prompt_tokens, output_tokens), COST)


def test_before_a_request_has_ended_prompts_count_for_nothing() -> None:
    state = learned(steps(True, 2e-4), prompt_tokens=0, output_tokens=0)
    assert (state.seconds(COST, drafts=True), state.seconds(COST, drafts=False)) == (0.0, 0.0)


def test_what_is_decoded_beside_prompts_is_not_their_cost() -> None:
    state = learned(steps(False, 2e-4), steps(True, 3e-4))
    assert state.seconds(COST, drafts=False) == pytest.approx(3 * 2e-4, rel=0.03)
    assert state.seconds(COST, drafts=True) == pytest.approx(3 * 3e-4, rel=0.03)


@pytest.mark.parametrize("drafts", [True, False])
def test_a_kind_of_step_that_was_never_seen_is_guessed_from_the_other(drafts: bool) -> None:
    state = learned(steps(not drafts, 2e-4))
    ratio = state.seconds(COST, drafts=drafts) / state.seconds(COST, drafts=not drafts)
    assert ratio == pytest.approx(1.25 if drafts else 0.8)


def test_the_drafters_share_comes_from_steps_that_are_alike() -> None:
    """Prompts are cheap in steps that also decode, with and without the drafter; alone they are expensive."""
    state = learned(steps(False, 1e-4), steps(True, 4.8e-4, batch_size=0))
    assert state.drafter_share == 0.25
    state = learned(steps(False, 1e-4), steps(True, 1.5e-4))
    assert state.drafter_share == pytest.approx(0.5, abs=0.05)
    state = learned(steps(False, 1e-4), steps(True, 9e-4))
    assert state.drafter_share <= 1.0


def test_the_mix_of_requests_follows_those_that_end() -> None:
    state = learned(steps(False, 2e-4))
    for _ in range(10):
        state = observe(state, PromptStats((), 1000, 10_000), COST)
    assert state.prompt_ratio == pytest.approx(0.1, rel=0.05)


def test_prompts_of_a_report_that_repeats_what_was_learned_count_once() -> None:
    """The answer to the first report came too late, so the replica reports the same period again."""
    told = StepReport(StepStats(STATIC, 7, (good_cell(),), PromptStats((steps(True, 2e-4),), 3000, 1000)), reading=1)
    dear = PromptStats((steps(True, 2e-2),), 30_000, 1000)

    def expected(prompts: PromptStats, since: int) -> Any:
        depths = ModelDepths(SETTINGS)
        depths.report("a", told, 0.5)
        depths.report("a", StepReport(StepStats(STATIC, 7, (), prompts), reading=2, since=since), 1.0)
        return depths.estimates(1.0)

    assert expected(dear, since=0) == expected(PromptStats(), since=0)
    assert expected(dear, since=1) != expected(PromptStats(), since=1), "a report that repeats nothing counts"


@pytest.mark.parametrize(
    "prompts",
    [PromptStats((), 3000, -1), PromptStats((replace(steps(True, 2e-4), seconds=-1.0),), 3000, 1000)],
    ids=["ended", "seconds"],
)
def test_an_impossible_count_teaches_nothing_and_the_guard_acts(prompts: PromptStats) -> None:
    state, plan = step(start(SETTINGS), StepReport(StepStats(STATIC, 7, (good_cell(),), prompts)), SETTINGS, 0.5)
    assert plan.mode is Mode.FALLBACK
    assert "negative counts of prompts" in plan.reason
    assert state.prompts == PromptCost()
