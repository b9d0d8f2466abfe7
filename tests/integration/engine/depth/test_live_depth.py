"""Live depth in a real engine: outputs never change, and K is as requested.

Everything runs in float32. In bfloat16 the last bits of a row's logits depend on how many rows are computed with it. K,
batch size and preemption all change that number. If two tokens are almost equally likely, the greedy choice then flips,
with and without speculation. float32 leaves differences of about one part in a million, far below the gaps that occur.
vLLM's own tests of speculation compare in float32 for the same reason.
"""

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from peagle.engine.grammars.mask_times import SLOW_GRAMMAR
from peagle.engine.shared_steps import FLOW_ARG
from peagle.errors import ConfigError
from peagle.router.snapshot import DepthTable, StepCell
from support.engines.engine_runner import Runner, embedded, held_out, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEPTH_MAX = 7
# By batch size. Alone a prompt takes several times as long, and tests the same text.
PROMPTS = {1: 25, 8: 100}
TOKENS = 24
# Room for 8 requests of the lossless tests, but not for 8 of PREEMPTING.
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "block_size": 32,
    "num_gpu_blocks_override": 100,
    # A model this small would otherwise indent until its tokens run out.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["class", "function", "module"]},
        "public": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2, "maxItems": 3},
    },
    "required": ["kind", "public", "names"],
    "additionalProperties": False,
}
# In turn: vLLM does not apply these parameters to drafts, so such requests run without drafts next to others.
BIAS = dict.fromkeys(range(200, 2000, 3), -100.0)
TURNS: tuple[dict[str, Any], ...] = (
    {},
    {"logit_bias": BIAS},
    {"min_p": 0.3, "temperature": 1.2, "seed": 5},
    {"logit_bias": BIAS, "min_p": 0.1, "temperature": 0.9, "seed": 6},
)
# In turn: three requests of one client, one of another; a shared step has room for three.
CLIENTS = tuple({"extra_args": {FLOW_ARG: [name, 1.0, False]}} for name in ("many", "many", "few", "many"))
STEP_TOKENS = 3 * (DEPTH_MAX + 1)
# Each way to parse the text so far must be compared with the next token: 0.2 ms at first, 50 ms later.
LATE_GRAMMAR = """
root ::= a "~"
a ::= b a | b
b ::= c b | c
c ::= [ab] c | [ab]
"""
MASK_S_MAX = 0.01
OnStep = Callable[[list[str]], None] | None
Turns = Sequence[Mapping[str, Any]]


def lossless(runner: Runner, batch_size: int, on_step: OnStep = None, by_turns: Turns = ({},)) -> list[tuple[int, ...]]:
    prompts = held_out(PROMPTS[batch_size])
    outputs = runner.generate(prompts, batch_size, on_step, by_turns, max_tokens=TOKENS, ignore_eos=True)
    return [tuple(output.token_ids) for output in outputs]


def preempting(runner: Runner, on_step: OnStep = None, by_turns: Turns = ({},)) -> list[tuple[int, ...]]:
    """Run eight requests that together outgrow the KV cache."""
    prompts = [prompt * 2 for prompt in held_out(8)]
    outputs = runner.generate(prompts, 8, on_step, by_turns, max_tokens=200, ignore_eos=True)
    return [tuple(output.token_ids) for output in outputs]


def structured(runner: Runner, on_step: OnStep = None, by_turns: Turns = ({},)) -> list[str]:
    from vllm.sampling_params import StructuredOutputsParams

    outputs = runner.generate(
        held_out(8),
        4,
        on_step,
        by_turns,
        max_tokens=160,
        structured_outputs=StructuredOutputsParams(json=SCHEMA),
    )
    return [output.text for output in outputs]


def beside_a_late_grammar(runner: Runner) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the answer of a request whose grammar becomes slow, and those of three concurrent requests."""
    from vllm.sampling_params import StructuredOutputsParams

    # It is used once.
    turns = ({"structured_outputs": StructuredOutputsParams(grammar=LATE_GRAMMAR)}, {}, {}, {})
    late, *others = runner.generate(held_out(4), 4, by_turns=turns, max_tokens=250, ignore_eos=True)
    return late, [tuple(output.token_ids) for output in others]


def stopping(runner: Runner, on_step: OnStep = None) -> list[tuple[str, str]]:
    outputs = runner.generate(held_out(24), 4, on_step, max_tokens=64, stop=["):", "\n\n", "self."])
    return [(output.text, output.stop_reason) for output in outputs]


def by_turns(runner: Runner, on_step: OnStep = None) -> list[Any]:
    return runner.generate(held_out(32), 4, on_step, by_turns=TURNS, max_tokens=TOKENS, ignore_eos=True)


def tokens_of(outputs: list[Any]) -> list[tuple[int, ...]]:
    return [tuple(output.token_ids) for output in outputs]


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    """Return the target's output without speculation."""
    deployment = embedded(**ENGINE)
    plain = deployment.model_copy(update={"speculation": deployment.speculation.model_copy(update={"enabled": False})})
    with running(plain, mask_s_max=MASK_S_MAX) as runner:
        with pytest.raises(ConfigError, match="runs without live depth"):
            runner.set_depths(3)
        with pytest.raises(ConfigError, match="runs without live depth"):
            runner.stats()
        return {
            **{f"lossless at {size}": lossless(runner, size) for size in PROMPTS},
            "preempting": preempting(runner),
            "structured": structured(runner),
            "stopping": stopping(runner),
            "by turns": tokens_of(by_turns(runner)),
            "alone": tokens_of(runner.generate(held_out(4)[1:], 3, max_tokens=250, ignore_eos=True)),
            "beside": beside_a_late_grammar(runner),
        }


@pytest.fixture(scope="module")
def runner(truth: dict[str, Any]) -> Iterator[Runner]:
    """Start one engine with live depth, after the one without has stopped."""
    deployment = embedded(**ENGINE)
    routing = deployment.routing.model_copy(update={"step_tokens_shared": STEP_TOKENS})
    with running(deployment.model_copy(update={"routing": routing}), mask_s_max=MASK_S_MAX) as runner:
        yield runner


# Alone, one step at a time takes long; the next test passes through every depth alone, too.
@pytest.mark.parametrize(
    ("depth", "batch_size"), [*((depth, 8) for depth in range(DEPTH_MAX + 1)), *((depth, 1) for depth in (0, 1, 3, 7))]
)
def test_output_equals_the_targets_own_at_every_depth(
    runner: Runner, truth: dict[str, Any], depth: int, batch_size: int
) -> None:
    runner.set_depths(depth)
    before, counted = runner.stats(), runner.counters()
    assert lossless(runner, batch_size) == truth[f"lossless at {batch_size}"]
    after, counts = runner.stats().since(before), runner.counters()
    drafts = counts["spec_decode_num_drafts"] - counted["spec_decode_num_drafts"]
    assert {cell.depth for cell in after.cells} == {depth}
    assert counts["spec_decode_num_draft_tokens"] - counted["spec_decode_num_draft_tokens"] == depth * drafts
    for cell in after.cells:
        assert cell.drafted == (cell.drafts,) * depth + (0,) * (DEPTH_MAX - depth)
        assert not any(cell.accepted[depth:])
        assert not any(cell.tail_reached[:depth])
        assert cell.seconds > 0


@pytest.mark.parametrize("batch_size", PROMPTS)
def test_output_equals_the_targets_own_while_depth_changes(
    runner: Runner, truth: dict[str, Any], batch_size: int
) -> None:
    before = runner.stats()
    assert lossless(runner, batch_size, runner.restless(seed=batch_size)) == truth[f"lossless at {batch_size}"]
    assert len({cell.depth for cell in runner.stats().since(before).cells}) == DEPTH_MAX + 1


def test_output_equals_the_targets_own_while_clients_share_steps(runner: Runner, truth: dict[str, Any]) -> None:
    runner.set_depths(DEPTH_MAX)
    before = runner.stats()
    assert lossless(runner, 8, by_turns=CLIENTS) == truth["lossless at 8"]
    done = runner.stats().since(before)
    # Until one client has all its answers. Most shared steps also contain part of a prompt.
    crowded = sum(cell.steps for cell in done.cells if cell.batch_size > 3)
    assert crowded < 0.2 * (sum(cell.steps for cell in done.cells) + sum(cell.steps for cell in done.prompts.cells))
    assert lossless(runner, 8, runner.restless(seed=19), CLIENTS) == truth["lossless at 8"]
    assert preempting(runner, runner.restless(seed=23), CLIENTS) == truth["preempting"]
    assert structured(runner, runner.restless(seed=29), CLIENTS) == truth["structured"]


@pytest.mark.parametrize("depth", [1, 3])
def test_shared_out_by_request_as_many_drafts_are_verified_and_more_of_them_are_right(
    runner: Runner, truth: dict[str, Any], depth: int
) -> None:
    right = {}
    for by_request in (False, True):
        runner.set_depths(depth, by_request=by_request)
        if by_request:  # otherwise its output is compared above
            assert lossless(runner, 8) == truth["lossless at 8"]
        before = runner.stats()
        # With short answers few steps hold eight drafts and no prompt.
        runner.generate(held_out(48), 8, max_tokens=96, ignore_eos=True)
        cells = [cell for cell in runner.stats().since(before).cells if cell.batch_size == 8]
        (cell,) = cells
        assert sum(cell.drafted) == depth * cell.sequences
        assert cell.drafts == cell.sequences
        right[by_request] = sum(cell.accepted) / cell.sequences
        if by_request:
            assert len({*cell.drafted[:depth]}) > 1 or cell.drafted[depth] > 0
            assert cell.shared_right[depth - 1] > cell.equal_right[depth - 1] > 0
    assert right[True] > 1.05 * right[False]


def rate_gap(right: int, of: int, other_right: int, other_of: int) -> float:
    """Return the two-proportion z: the difference of two rates in standard errors."""
    pooled = (right + other_right) / (of + other_of)
    error = math.sqrt(pooled * (1 - pooled) * (1 / of + 1 / other_of))
    return 0.0 if error == 0 else (right / of - other_right / other_of) / error


def total(cells: Sequence[StepCell], field: str, position: int) -> int:
    return sum(getattr(cell, field)[position] for cell in cells)


def measured(
    runner: Runner, shallow: int, deep: int, batch_size: int
) -> tuple[tuple[StepCell, ...], tuple[StepCell, ...]]:
    """Measure steps at two depths, chosen randomly for each step of one run.

    In separate runs the drafts would begin at different positions: deep drafts pass easy text in fewer steps, so less
    of it is counted.
    """
    rng, before = random.Random(batch_size), runner.stats()
    runner.generate(
        held_out(96),
        batch_size,
        lambda _: runner.set_depths(rng.choice((shallow, deep))),
        max_tokens=64,
        ignore_eos=True,
    )
    cells = runner.stats().since(before).cells
    assert {cell.batch_size for cell in cells} >= {batch_size}
    return tuple(cell for cell in cells if cell.depth == shallow), tuple(cell for cell in cells if cell.depth == deep)


@pytest.mark.parametrize("batch_size", [1, 8])
def test_acceptance_by_position_does_not_depend_on_depth(runner: Runner, batch_size: int) -> None:
    shallow, deep = measured(runner, 3, DEPTH_MAX, batch_size)
    for position in range(3):
        counts = [total(cells, field, position) for cells in (shallow, deep) for field in ("accepted", "drafted")]
        assert min(counts[1], counts[3]) > 500
        assert abs(rate_gap(*counts)) < 4, (position, counts)
    assert total(deep, "accepted", 0) > 0


def test_cut_tails_tell_the_acceptance_beyond_the_depth(runner: Runner) -> None:
    shallow, deep = measured(runner, 2, DEPTH_MAX, 8)
    for position in range(2, DEPTH_MAX):
        counts = [
            total(shallow, "tail_matched", position),
            total(shallow, "tail_reached", position),
            total(deep, "accepted", position),
            total(deep, "accepted", position - 1),
        ]
        assert min(counts[1], counts[3]) > 200  # drafts that were right so far
        assert abs(rate_gap(*counts)) < 4, (position, counts)


def test_aborted_requests_leave_the_others_as_they_were(runner: Runner, truth: dict[str, Any]) -> None:
    change, steps = runner.restless(seed=5), 0

    def abort_some(in_flight: list[str]) -> None:
        nonlocal steps
        steps += 1
        change(in_flight)
        if steps % 4 == 0 and len(in_flight) > 4:
            runner.engine.abort_request(in_flight[:1])

    outputs = runner.generate(held_out(PROMPTS[8]), 8, abort_some, max_tokens=TOKENS, ignore_eos=True)
    kept = [index for index, output in enumerate(outputs) if output is not None]
    assert 0 < len(kept) < PROMPTS[8]
    for index in kept:
        assert tuple(outputs[index].token_ids) == truth["lossless at 8"][index]


def test_preempted_requests_resume_where_they_were(runner: Runner, truth: dict[str, Any]) -> None:
    before = runner.counters()["num_preemptions"]
    assert preempting(runner, runner.restless(seed=3)) == truth["preempting"]
    assert runner.counters()["num_preemptions"] > before


def test_structured_output_follows_its_schema_while_depth_changes(runner: Runner, truth: dict[str, Any]) -> None:
    texts = structured(runner, runner.restless(seed=11))
    assert texts == truth["structured"]
    for text in texts:
        assert set(json.loads(text)) == {"kind", "public", "names"}


def test_parameters_that_vllm_does_not_apply_to_drafts_are_served_without_drafts(
    runner: Runner, truth: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    from peagle.engine.patches.undrafted_parameters import accept

    runner.set_depths(DEPTH_MAX)
    with pytest.raises(VLLMValidationError, match="not yet supported with speculative decoding"):
        runner.generate(held_out(1), 1, logit_bias=BIAS)
    monkeypatch.setattr(SamplingParams, "_validate_spec_decode", SamplingParams._validate_spec_decode)
    accept()
    outputs = by_turns(runner)
    assert tokens_of(outputs) == truth["by turns"]
    drafted = [output.spec_decode_metrics.num_draft_tokens for output in outputs]
    assert [count > 0 for count in drafted] == [index % len(TURNS) == 0 for index in range(len(outputs))]
    assert tokens_of(by_turns(runner, runner.restless(seed=17))) == truth["by turns"]
    # The bias has an effect.
    assert not any(
        set(text) & set(BIAS) for index, text in enumerate(tokens_of(outputs)) if index % len(TURNS) in (1, 3)
    )


def test_stop_strings_end_a_request_at_the_same_place(runner: Runner, truth: dict[str, Any]) -> None:
    texts = stopping(runner, runner.restless(seed=13))
    assert texts == truth["stopping"]
    assert any(reason for _, reason in texts)


def test_a_refused_table_names_what_is_wrong_and_the_engine_goes_on(runner: Runner, truth: dict[str, Any]) -> None:
    from peagle.engine.depth.live_depth import set_depths_sync

    table = runner.stats().table
    with pytest.raises(ConfigError, match="depth at batch size 2 = 8: K is out of range"):
        set_depths_sync(runner.llm, DepthTable(runner.version + 1, (1, 1, 8)))
    with pytest.raises(ConfigError, match="version"):
        set_depths_sync(runner.llm, DepthTable(runner.version - 1, (1,)))
    assert runner.stats().table == table
    outputs = runner.generate(held_out(8), 8, max_tokens=TOKENS, ignore_eos=True)
    assert tokens_of(outputs) == truth["lossless at 8"][:8]


def test_a_request_whose_grammar_becomes_slow_ends_and_others_beside_it_go_on(
    runner: Runner, truth: dict[str, Any]
) -> None:
    runner.set_depths(DEPTH_MAX)
    for late, others in (truth["beside"], beside_a_late_grammar(runner)):
        assert (late.finish_reason, late.stop_reason) == ("error", SLOW_GRAMMAR)
        assert len(late.token_ids) > 8
        assert set(late.text) <= set("ab")
        assert others == truth["alone"]
    assert structured(runner) == truth["structured"]
