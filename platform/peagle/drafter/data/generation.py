"""Generates the target's own continuations with vLLM, since a head has to predict what its target writes."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peagle.drafter.data.generated_text import ANSWER_TOKENS_MIN, GeneratedText
from peagle.drafter.data.prompt_source import Asked, GenerationPlan
from peagle.errors import ConfigError
from peagle.import_paths import WORKER_EXTENSION


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Number of prompts without a row, by reason."""

    too_long: int = 0
    loops: int = 0
    too_short: int = 0

    def __str__(self) -> str:
        reasons = (
            (self.too_long, "a prompt too long for a row"),
            (self.loops, "an answer that repeats itself"),
            (self.too_short, f"an answer of fewer than {ANSWER_TOKENS_MIN} tokens"),
        )
        return ", ".join(f"{count} with {reason}" for count, reason in reasons if count) or "none"


def generate(
    target: Path, asked: Asked, plan: GenerationPlan, tensor_parallel: int = 1
) -> tuple[GeneratedText, LeftOut]:
    """Let `target` answer the prompts; vLLM shows the progress.

    Returns:
        Rows of at most `plan.row_tokens`, and the number left out. A greedy answer that repeats itself is easy to draft
        and teaches nothing, so rows that mostly repeat are left out, and so are answers too short to learn from.

    Raises:
        ConfigError: No row is left, or this machine has no GPUs across which to split the target.
    """
    from vllm import LLM, SamplingParams, TokensPrompt  # starts worker processes; only this call needs them

    parameters = [
        SamplingParams(
            temperature=0.0 if greedy else plan.temperature,
            max_tokens=plan.row_tokens - len(prompt),
            ignore_eos=not asked.ends,
            detokenize=False,
            seed=None if greedy else row,
        )
        for row, (prompt, greedy) in enumerate(zip(asked.prompts, asked.greedy, strict=True))
    ]
    engine = LLM(
        str(target),
        max_model_len=plan.row_tokens,
        enable_prefix_caching=False,
        worker_extension_cls=WORKER_EXTENSION,  # vLLM alone cannot prefill a seeded prompt in chunks on a CPU
        **_device_arguments(tensor_parallel),
    )
    outputs = engine.generate(
        [TokensPrompt(prompt_token_ids=each) for each in asked.prompts], parameters, use_tqdm=_bar()
    )
    return rows_of(asked, [list(output.outputs[0].token_ids) for output in outputs], plan.repeats_max)


def rows_of(asked: Asked, answers: Sequence[list[int]], repeats_max: float) -> tuple[GeneratedText, LeftOut]:
    """Return prompts with usable answers, and the number left out. Raises ConfigError if no row is left."""
    too_short = {row for row, answer in enumerate(answers) if len(answer) < ANSWER_TOKENS_MIN}
    looping = {row for row, answer in enumerate(answers) if loops(answer, repeats_max=repeats_max)}
    left_out = LeftOut(asked.too_long, len(looping), len(too_short))
    kept = [row for row in range(len(answers)) if row not in too_short | looping]
    if not kept:
        fix = "Use other prompts with --prompts-from, or raise --row-tokens."
        raise ConfigError("prompts", len(answers) + asked.too_long, f"no row is left: {left_out}", fix)
    return GeneratedText.of([asked.prompts[row] for row in kept], [answers[row] for row in kept]), left_out


def loops(tokens: Sequence[int], window: int = 12, repeats_max: float = 0.35) -> bool:
    """Return whether more than `repeats_max` of the `window`-token runs in `tokens` occurred earlier in it."""
    runs = [tuple(tokens[at : at + window]) for at in range(len(tokens) - window + 1)]
    return bool(runs) and 1 - len(set(runs)) / len(runs) > repeats_max


def _device_arguments(tensor_parallel: int) -> dict[str, Any]:
    """Return an engine's arguments on a CPU; on a GPU vLLM itself chooses memory, sequences and graphs.

    Raises ConfigError if a target is to be split on a machine without GPUs.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {"tensor_parallel_size": tensor_parallel}
    if tensor_parallel > 1:
        raise ConfigError("--tensor-parallel", tensor_parallel, "vLLM uses the CPU here", "Write 1.")
    return {"max_num_seqs": 128, "kv_cache_memory_bytes": 1 << 30, "enforce_eager": True}


def _bar() -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]

    # When written to a file, one line every half minute.
    return partial(tqdm, mininterval=0.5 if sys.stderr.isatty() else 30.0)
