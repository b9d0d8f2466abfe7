"""The target's own continuations, through vLLM: what a head has to predict is what its target writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peagle.drafter.text import GeneratedText
from peagle.engine.arguments import WORKER_EXTENSION


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Prompts are windows of the corpus; `greedy_ratio` of the answers are greedy, the rest sampled.

    Greedy text follows from its prompt, so every later token can be learned from it. Of sampled text a draft of several
    tokens can only learn the odds: a share of it keeps the head useful at a temperature.
    """

    prompts: int = 12_800
    prompt_tokens_min: int = 136
    prompt_tokens_max: int = 184
    sequence_tokens: int = 256
    greedy_ratio: float = 0.95
    temperature: float = 0.8
    repeats_max: float = 0.6
    seed: int = 7


def generate(target: Path, tokens: np.ndarray, plan: GenerationPlan) -> GeneratedText:
    """Continue windows of `tokens` (int32, [tokens]) with `target`.

    Returns:
        Rows of `sequence_tokens`. A greedy answer that goes round in circles is easy to draft and teaches nothing, so
        rows that do little else are left out and fewer may come back.
    """
    from vllm import LLM, SamplingParams, TokensPrompt  # starts worker processes; only this call needs them

    draw = np.random.default_rng(plan.seed)
    lengths = draw.integers(plan.prompt_tokens_min, plan.prompt_tokens_max, plan.prompts)
    starts = draw.integers(0, len(tokens) - plan.prompt_tokens_max, plan.prompts)
    prompts = [tokens[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
    parameters = [
        SamplingParams(
            temperature=0.0 if greedy else plan.temperature,
            max_tokens=plan.sequence_tokens - len(prompt),
            ignore_eos=True,
            detokenize=False,
            seed=None if greedy else row,
        )
        for row, (prompt, greedy) in enumerate(zip(prompts, draw.random(plan.prompts) < plan.greedy_ratio, strict=True))
    ]
    engine = LLM(
        str(target),
        max_model_len=plan.sequence_tokens,
        max_num_seqs=128,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 30,
        enforce_eager=True,
        worker_extension_cls=WORKER_EXTENSION,  # vLLM alone cannot prefill a seeded prompt in parts on a CPU
    )
    outputs = engine.generate([TokensPrompt(prompt_token_ids=each) for each in prompts], parameters)
    answers = [output.outputs[0].token_ids for output in outputs]
    kept = [row for row, answer in enumerate(answers) if not loops(answer, repeats_max=plan.repeats_max)]
    rows = [[*prompts[row], *answers[row]] for row in kept]
    return GeneratedText(np.asarray(rows, dtype=np.int32), lengths[kept].astype(np.int32))


def loops(tokens: Sequence[int], window: int = 12, repeats_max: float = 0.35) -> bool:
    """Whether more than `repeats_max` of the `window`-token runs in `tokens` have been seen before in it."""
    runs = [tuple(tokens[at : at + window]) for at in range(len(tokens) - window + 1)]
    return bool(runs) and 1 - len(set(runs)) / len(runs) > repeats_max
