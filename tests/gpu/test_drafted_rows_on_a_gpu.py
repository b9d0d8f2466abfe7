"""An engine on a GPU drafts what it verifies, except for one step in eight, which measures acceptance beyond K."""

from collections.abc import Iterator

import pytest

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from support.engines.engine_runner import Runner, embedded, held_out, running

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(600)]
DEPTH_MAX, REQUESTS, TOKENS = 7, 16, 128


@pytest.fixture(scope="module")
def runner(gpu: None) -> Iterator[Runner]:
    deployment = embedded(dtype="float32", max_num_seqs=32, kv_cache_memory_bytes=2**31)
    changed = {
        "speculation": deployment.speculation.model_copy(update={"adaptive": True}),
        "resources": deployment.resources.model_copy(update={"accelerator": "gpu"}),
    }
    with running(deployment.model_copy(update=changed)) as runner:
        yield runner


def texts(runner: Runner, **by_turn: object) -> list[tuple[int, ...]]:
    outputs = runner.generate(held_out(REQUESTS), REQUESTS, by_turns=[{}, by_turn], max_tokens=TOKENS, ignore_eos=True)
    return [tuple(output.token_ids) for output in outputs]


@pytest.fixture(scope="module")
def truth(runner: Runner) -> list[tuple[int, ...]]:
    runner.set_depths(DEPTH_MAX)
    return texts(runner)


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_masks_are_those_of_k_but_for_one_step_in_eight(
    runner: Runner, truth: list[tuple[int, ...]], depth: int
) -> None:
    runner.set_depths(depth)
    before = runner.stats()
    assert texts(runner) == truth
    added = runner.stats().since(before)
    assert added.rows.unfitted == 0, "the kernel was not used: the log says why"
    assert added.depth_effective == pytest.approx(depth, rel=0.02)
    steps = sum(cell.steps for cell in added.cells) + sum(cell.steps for cell in added.prompts.cells)
    masks = added.rows.drafted - added.rows.verified
    whole = steps / 8 + 1
    assert masks <= REQUESTS * ((depth - 1) * steps + (DEPTH_MAX - depth) * whole)
    tails = [sum(cell.tail_reached[position] for cell in added.cells) for position in range(DEPTH_MAX)]
    assert tails[depth] > 0
    assert sum(tails[:depth]) == 0


def test_tails_say_what_whole_drafts_say(runner: Runner, truth: list[tuple[int, ...]]) -> None:
    rates = {}
    for depth in (1, DEPTH_MAX):
        runner.set_depths(depth)
        before = runner.stats()
        for _ in range(3):
            assert texts(runner) == truth
        cells = runner.stats().since(before).cells
        reached, matched = ("tail_reached", "tail_matched") if depth == 1 else ("drafted", "accepted")
        first = sum(cell.accepted[0] for cell in cells) if depth == DEPTH_MAX else None
        of = first if first is not None else sum(getattr(cell, reached)[1] for cell in cells)
        rates[depth] = sum(getattr(cell, matched)[1] for cell in cells) / of
    # Drafts begin at different positions: deep drafts pass easy text in fewer steps.
    assert rates[1] == pytest.approx(rates[DEPTH_MAX], abs=0.15)


def test_a_request_of_a_smaller_bound_has_fewer_masks_and_the_same_text(
    runner: Runner, truth: list[tuple[int, ...]]
) -> None:
    runner.set_depths(5)
    masks = []
    for bound in (5, 1):
        before = runner.stats()
        assert texts(runner, extra_args={DEPTH_MAX_ARG: bound}) == truth
        added = runner.stats().since(before)
        assert added.rows.unfitted == 0
        masks.append((added.rows.drafted - added.rows.verified) / added.rows.verified)
    assert masks[1] < masks[0]
