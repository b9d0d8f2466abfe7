"""With K = 0 for a whole batch no draft is made; outputs stay, and a request that missed drafts makes no more."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from peagle.router.snapshot import StepStats
from support.engines.engine_runner import Runner, embedded, held_out, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# float32: see test_live_depth.py.
# Small blocks, so that prompts leave whole blocks in the prefix cache.
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8, "block_size": 32}
TOKENS = 32


def watch(worker: Any) -> None:
    """Count, in the worker's process, the drafter's passes and the calls that fetch drafts."""
    counts = worker.seen = {"passes": 0, "fetches": 0}

    def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    drafter = worker.model_runner.drafter
    counts["rows"] = 0
    propose = drafter.propose

    def with_rows(*args: Any, **kwargs: Any) -> Any:
        drafts = propose(*args, **kwargs)
        counts["rows"] += drafts.numel()
        return drafts

    drafter.propose = counted(with_rows, "passes")
    worker.take_draft_token_ids = counted(worker.take_draft_token_ids, "fetches")


def seen(worker: Any) -> dict[str, int]:
    counts: dict[str, int] = worker.seen
    return dict(counts)


def counts(runner: Runner) -> dict[str, int]:
    found: dict[str, int] = runner.llm.collective_rpc(seen)[0]
    return found


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    deployment = embedded(**ENGINE)
    adaptive = deployment.speculation.model_copy(update={"adaptive": True})
    with pytest.MonkeyPatch.context() as patch:
        # Lets a test inspect the worker.
        patch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
        with running(deployment.model_copy(update={"speculation": adaptive})) as runner:
            runner.llm.collective_rpc(watch)
            yield runner


@pytest.fixture(scope="module")
def truth(runner: Runner) -> list[tuple[int, ...]]:
    """Return the texts at full depth, which are the target's own (test_live_depth.py)."""
    runner.set_depths(7)
    return texts(runner)


def texts(runner: Runner, on_step: Callable[[list[str]], None] | None = None) -> list[tuple[int, ...]]:
    outputs = runner.generate(held_out(16), 4, on_step, max_tokens=TOKENS, ignore_eos=True)
    return [tuple(output.token_ids) for output in outputs]


def drafts(runner: Runner) -> int:
    return runner.counters()["spec_decode_num_drafts"]


def test_at_depth_zero_nothing_is_drafted_and_the_text_is_the_same(
    runner: Runner, truth: list[tuple[int, ...]]
) -> None:
    runner.set_depths(0)
    before, counted = runner.stats(), counts(runner)
    assert texts(runner) == truth
    after = runner.stats().since(before)
    assert after.drafts == after.rows.drafted == 0
    assert after.rows.verified >= 16 * TOKENS
    assert sum(cell.steps for cell in after.cells) > 100
    assert counts(runner)["passes"] == counted["passes"]


def test_drafts_come_with_the_output_and_are_never_called_for(runner: Runner, truth: list[tuple[int, ...]]) -> None:
    runner.set_depths(7)
    before = counts(runner)
    assert texts(runner) == truth
    after = counts(runner)
    assert after["passes"] - before["passes"] > 30
    assert after["fetches"] == before["fetches"]


def test_no_deeper_is_drafted_than_is_verified_and_as_well(runner: Runner, truth: list[tuple[int, ...]]) -> None:
    rights = {}
    for depth in (7, 2):
        runner.set_depths(depth)
        before, counted = runner.stats(), counts(runner)["rows"]
        assert texts(runner) == truth
        added = runner.stats().since(before)
        rights[depth] = [added.accepted_by_position[j] / added.drafted_by_position[j] for j in range(2)]
        drafted = counts(runner)["rows"] - counted
        assert added.depth_effective == depth
        assert drafted > 0.9 * added.drafts * depth
        # A mask for each draft except the first; a CPU computes no rejected rows.
        assert 0 < added.rows.drafted < added.rows.verified + drafted
    # One step in eight drafts all seven.
    assert drafted < 1.8 * added.drafts * 2
    # Texts are the same, but drafts begin at different positions: deeper ones pass easy text in fewer steps.
    assert rights[2] == pytest.approx(rights[7], abs=0.15)
    assert sum(cell.tail_reached[6] for cell in added.cells) > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_the_text_is_the_same_while_depth_changes(runner: Runner, truth: list[tuple[int, ...]], seed: int) -> None:
    assert texts(runner, runner.restless(seed)) == truth


def test_a_request_that_missed_drafts_makes_no_more_and_the_next_one_does(runner: Runner) -> None:
    runner.set_depths(0)
    steps = 0

    def raise_depth(_: list[str]) -> None:
        nonlocal steps
        steps += 1
        if steps == 8:
            runner.set_depths(7)

    before = drafts(runner)
    runner.generate(held_out(1), 1, raise_depth, max_tokens=TOKENS, ignore_eos=True)
    assert drafts(runner) == before
    assert steps >= TOKENS - 1
    runner.generate(held_out(1), 1, max_tokens=TOKENS, ignore_eos=True)
    assert drafts(runner) > before


def test_requests_that_may_draft_run_with_requests_that_may_not(runner: Runner, truth: list[tuple[int, ...]]) -> None:
    runner.set_depths(0)
    steps = 0

    def raise_depth(_: list[str]) -> None:
        nonlocal steps
        steps += 1
        if steps == 40:  # in the middle of the second four
            runner.set_depths(7)

    before, counted = runner.stats(), drafts(runner)
    assert texts(runner, raise_depth) == truth
    assert drafts(runner) > counted
    assert all(cell.depth == 0 or cell.drafts for cell in runner.stats().since(before).cells)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "seeded"])
@pytest.mark.parametrize("bounds", [(0,), (2,), (None, 0, 3, 99)], ids=["off", "shallow", "mixed"])
def test_a_requests_own_bound_changes_what_is_drafted_and_not_its_text(
    runner: Runner, bounds: tuple[int | None, ...], sampling: dict[str, Any]
) -> None:
    runner.set_depths(7)

    def ask(bounds: tuple[int | None, ...]) -> tuple[list[tuple[int, ...]], list[Any]]:
        own = [{} if bound is None else {"extra_args": {DEPTH_MAX_ARG: bound}} for bound in bounds]
        outputs = runner.generate(held_out(16), 4, by_turns=own, max_tokens=TOKENS, ignore_eos=True, **sampling)
        return [tuple(output.token_ids) for output in outputs], [output.spec_decode_metrics for output in outputs]

    texts, _ = ask((None,))
    before, counted = drafts(runner), counts(runner)["passes"]
    bounded, told = ask(bounds)
    assert bounded == texts
    for index, of_request in enumerate(told):
        bound = bounds[index % len(bounds)]
        deepest = 7 if bound is None else min(bound, 7)
        assert of_request.num_draft_tokens <= deepest * sum(of_request.histogram)
        assert (of_request.num_draft_tokens > 0) == (deepest > 0)
    assert drafts(runner) - before == sum(sum(of_request.histogram) for of_request in told)
    if bounds == (0,):
        assert counts(runner)["passes"] - counted <= 16, "the drafter runs only over prompts"


def test_after_a_time_without_drafts_new_ones_are_as_good_as_before(
    runner: Runner, truth: list[tuple[int, ...]]
) -> None:
    runner.set_depths(7)
    shares = []
    for depth in (7, 0, 7):
        runner.set_depths(depth)
        if depth == 0:
            # Prompts are then also computed without the drafter; the gaps in the cache must not harm later requests.
            runner.llm.reset_prefix_cache()
        before = runner.counters()
        assert texts(runner) == truth
        after = runner.counters()
        accepted, drafted = (
            after[name] - before[name] for name in ("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens")
        )
        shares.append(accepted / drafted if drafted else 0.0)
    # vLLM's own counters include every draft. The batch size can flip the last bits of a close choice.
    assert shares[2] == pytest.approx(shares[0], rel=0.05)
    assert shares[1] == 0.0


def test_drafts_without_room_are_not_counted(runner: Runner) -> None:
    """At the end of the context vLLM returns zeros as drafts, which the target would reject one by one."""
    tokenizer, length = runner.llm.get_tokenizer(), runner.llm.model_config.max_model_len
    prompt = tokenizer.decode(tokenizer.encode("\n".join(held_out(16)))[: length - 40])
    texts: list[tuple[int, ...]] = []
    for depth in (0, 7):
        runner.set_depths(depth)
        seen = [runner.stats()]

        def watch_step(_: list[str], seen: list[StepStats] = seen) -> None:
            seen.append(runner.stats())

        (output,) = runner.generate([prompt], 1, watch_step, ignore_eos=True, max_tokens=length)
        texts.append(tuple(output.token_ids))
    assert texts[0] == texts[1]
    assert 20 < len(texts[1]) < 60
    steps = [after.since(before) for before, after in itertools.pairwise(seen)]
    tokens = [sum(cell.tokens for cell in step.cells) for step in steps]
    # With fewer tokens left than this, the drafter has no room, because it needs Kmax.
    left = [sum(tokens[number:]) for number in range(len(steps))]
    late = [bool(step.drafts) for step, tokens_left in zip(steps, left, strict=True) if 0 < tokens_left < 6]
    assert late
    assert not any(late)
    assert sum(step.drafts for step in steps) > 6
