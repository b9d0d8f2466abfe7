"""A seed in a real engine: one text per request and seed, at every depth and batch size, with or without speculation.

In float32, for the reason given in test_live_depth.py: in bfloat16 the last bits of the logits depend on the shape of
the batch, and if two tokens are that close a seeded choice flips like a greedy one.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from support.engines.engine_runner import Runner, embedded, held_out, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEPTH_MAX = 7
PROMPTS = 8
# Prompts above `max_num_batched_tokens` are prefilled in chunks.
ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 96,
}
SAMPLING: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 0.9, "seed": 7},
    "another seed": {"temperature": 0.9, "seed": 8},
    "filtered": {"temperature": 1.1, "top_p": 0.9, "top_k": 50, "seed": 7},
    "penalised": {"temperature": 0.9, "presence_penalty": 0.5, "frequency_penalty": 0.3, "seed": 7},
}
Texts = list[tuple[int, ...]]


def sampled(runner: Runner, batch_size: int, name: str, on_step: Any = None) -> Texts:
    outputs = runner.generate(held_out(PROMPTS), batch_size, on_step, max_tokens=32, ignore_eos=True, **SAMPLING[name])
    return [tuple(output.token_ids) for output in outputs]


def long_prompt(runner: Runner) -> Texts:
    outputs = runner.generate(["\n".join(held_out(4))], 1, max_tokens=32, ignore_eos=True, **SAMPLING["plain"])
    return [tuple(output.token_ids) for output in outputs]


@pytest.fixture(scope="module")
def truth() -> dict[str, Texts]:
    """Return each seed's text without speculation, one request at a time."""
    deployment = embedded(**ENGINE)
    plain = deployment.model_copy(update={"speculation": deployment.speculation.model_copy(update={"enabled": False})})
    with running(plain) as runner:
        texts = {name: sampled(runner, 1, name) for name in SAMPLING}
        assert sampled(runner, 8, "plain") == texts["plain"]
        return {**texts, "long prompt": long_prompt(runner)}


@pytest.fixture(scope="module")
def runner(truth: dict[str, Texts]) -> Iterator[Runner]:
    """Start one engine with live depth, after the one without has stopped."""
    with running(embedded(**ENGINE)) as runner:
        yield runner


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("depth", range(DEPTH_MAX + 1))
def test_a_seed_gives_the_same_text_at_every_depth(
    runner: Runner, truth: dict[str, Texts], depth: int, batch_size: int
) -> None:
    runner.set_depths(depth)
    before = runner.counters()["spec_decode_num_accepted_tokens"]
    assert sampled(runner, batch_size, "plain") == truth["plain"]
    assert (runner.counters()["spec_decode_num_accepted_tokens"] > before) == (depth > 0)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_seed_gives_the_same_text_while_depth_changes(runner: Runner, truth: dict[str, Texts], name: str) -> None:
    assert sampled(runner, 8, name, runner.restless(seed=2)) == truth[name]


def test_seeds_differ(truth: dict[str, Texts]) -> None:
    assert all(one != other for one, other in zip(truth["plain"], truth["another seed"], strict=True))


def test_a_seed_holds_beside_requests_without_one(runner: Runner, truth: dict[str, Texts]) -> None:
    from vllm import SamplingParams

    runner.set_depths(DEPTH_MAX)
    plain = SamplingParams(max_tokens=32, ignore_eos=True, **SAMPLING["plain"])
    free, greedy = SamplingParams(max_tokens=40, temperature=1.0), SamplingParams(max_tokens=20, temperature=0.0)
    prompts, kinds = [], []
    for prompt in held_out(PROMPTS):
        prompts += [prompt] * 3
        kinds += [free, plain, greedy]
    outputs = runner.llm.generate(prompts, kinds, use_tqdm=False)
    assert [tuple(output.outputs[0].token_ids) for output in outputs[1::3]] == truth["plain"]
    free_twice = runner.llm.generate(prompts[0:1] * 2, [free] * 2, use_tqdm=False)
    assert free_twice[0].outputs[0].token_ids != free_twice[1].outputs[0].token_ids


def test_a_prompt_prefilled_in_parts_keeps_its_seed(runner: Runner, truth: dict[str, Texts]) -> None:
    runner.set_depths(DEPTH_MAX)
    assert long_prompt(runner) == truth["long prompt"]


def test_choices_of_one_request_differ_and_repeat(runner: Runner) -> None:
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=32, ignore_eos=True, n=3, **SAMPLING["plain"])
    first, second = (
        [tuple(choice.token_ids) for choice in runner.llm.generate(held_out(1), params, use_tqdm=False)[0].outputs]
        for _ in range(2)
    )
    assert first == second
    assert len(set(first)) == 3
