"""Checks whether a head's training can work, before its long part: text, tokenizer, mask token, taps and memory.

Decides over plain values; reads no file and creates no tensor.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from peagle.drafter.data.generated_text import ANSWER_TOKENS_MIN, GeneratedText
from peagle.drafter.train.head_plan import OUT_OF_ORDER, HeadPlan, tapped_layers_of
from peagle.errors import CombinedConfigError, ConfigError

GENERATE = "Write the rows again with `peagle drafter generate` and this target."

# Memory that PyTorch's kernels reserve.
WORKSPACE_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Properties of a target that training needs.

    `weights_bytes` is the memory of its weights, `tokenizer_tokens` the number of ids in its tokenizer.
    """

    layers: int
    hidden_size: int
    mlp_size: int
    vocab_size: int
    weights_bytes: int
    context_tokens: int
    tokenizer_tokens: int


def check_training(
    plan: HeadPlan,
    shape: TargetShape,
    generated: GeneratedText,
    corpus: np.ndarray,
    mask_token: int | None,
    memory_bytes: int,
    processes: int = 1,
) -> None:
    """Check a training before it starts.

    Args:
        corpus: Text not written by the target, as one stream: int, [tokens].
        mask_token: Id of P-EAGLE's mask token; None if the tokenizer lacks it.
        memory_bytes: Memory available to each process.
        processes: Number of processes that share the rows of a step.

    Raises:
        ConfigError: Training cannot work; names all problems.
    """
    problems = [
        *_text_problems(plan, shape, generated, corpus),
        *_mask_problems(plan, shape, generated, corpus, mask_token),
        *_tap_problems(plan, shape),
        *_step_problems(plan, generated.tokens.shape[1], processes),
        *_memory_problems(plan, shape, generated.tokens.shape[1], memory_bytes, processes),
    ]
    if problems:
        raise CombinedConfigError.of(problems)


def _text_problems(
    plan: HeadPlan, shape: TargetShape, generated: GeneratedText, corpus: np.ndarray
) -> Iterator[ConfigError]:
    row_tokens = generated.tokens.shape[1]
    needed = plan.trained_depth + ANSWER_TOKENS_MIN
    if min(row_tokens, plan.crop_tokens) < needed:
        name, value, fix = "text.generated", row_tokens, "Raise --row-tokens of `peagle drafter generate`"
        if plan.crop_tokens < needed:
            name, value, fix = "training.crop_tokens", plan.crop_tokens, f"Write {needed} or more"
        problem = f"{plan.trained_depth} depths and an answer of {ANSWER_TOKENS_MIN} need rows of {needed} tokens"
        yield ConfigError(name, value, problem, f"{fix}, or lower head.trained_depth.")
    if row_tokens > shape.context_tokens:
        problem = f"rows are longer than the target's context of {shape.context_tokens} tokens"
        yield ConfigError("text.generated", row_tokens, problem, GENERATE)
    lengths = generated.row_lengths
    row = int((lengths - generated.prompt_tokens).argmin())
    if (prompt_tokens := int(generated.prompt_tokens[row])) + ANSWER_TOKENS_MIN > lengths[row]:
        problem = f"a row of {lengths[row]} tokens with a prompt this long has no answer of {ANSWER_TOKENS_MIN}"
        yield ConfigError("text.generated: prompt_tokens", prompt_tokens, problem, GENERATE)
    if plan.method == "eagle3" and (shortest := int(lengths.min())) < plan.trained_depth + 2:
        problem = f"eagle3 passes over a row once for each of {plan.trained_depth} depths, and this is too short"
        fix = f"Lower head.trained_depth to {shortest - 2}, or leave out prompts this short."
        yield ConfigError("text.generated: lengths", shortest, problem, fix)
    if shape.tokenizer_tokens > shape.vocab_size:
        problem = f"the tokenizer has more tokens than the target's vocabulary of {shape.vocab_size}"
        fix = "Put the tokenizer of the target's training into its folder."
        yield ConfigError("target: tokenizer.json", shape.tokenizer_tokens, problem, fix)
    for name, tokens, fix in (
        ("text.generated: tokens", generated.written, GENERATE),
        ("text.corpus", corpus, "Encode it with the target's own tokenizer."),
    ):
        if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) >= shape.vocab_size):
            worst = int(tokens.max()) if int(tokens.max()) >= shape.vocab_size else int(tokens.min())
            yield ConfigError(name, worst, f"the target's tokens go from 0 to {shape.vocab_size - 1}", fix)
    if plan.generated_ratio < 1 and len(corpus) <= row_tokens:
        problem = f"the corpus has fewer tokens than two rows of {row_tokens}"
        yield ConfigError("text.corpus", len(corpus), problem, "Use more text, or write text.generated_ratio: 1.0.")


def _mask_problems(
    plan: HeadPlan, shape: TargetShape, generated: GeneratedText, corpus: np.ndarray, mask_token: int | None
) -> Iterator[ConfigError]:
    if plan.method != "p-eagle":
        return
    if mask_token is None:
        fix = "Name a token of the target's tokenizer that its text never contains, such as a reserved one."
        yield ConfigError("head.mask_token", None, "the tokenizer has no such token", fix)
        return
    if mask_token >= shape.vocab_size:
        problem = f"the target's tokens go from 0 to {shape.vocab_size - 1}"
        yield ConfigError("head.mask_token", mask_token, problem, "Name a token of the target's own vocabulary.")
    for name, tokens in (("generated text", generated.written), ("corpus", corpus)):
        if count := int((tokens == mask_token).sum()):
            problem = f"the {name} contains it {count} times, so it cannot represent a token still to be drafted"
            yield ConfigError("head.mask_token", mask_token, problem, "Name a token that the text never contains.")


def _tap_problems(plan: HeadPlan, shape: TargetShape) -> Iterator[ConfigError]:
    if plan.tapped_layers is None:
        try:
            tapped_layers_of(shape.layers)
        except ConfigError as error:
            yield error
        return
    taps = list(plan.tapped_layers)
    fix = "Name three different layers, such as an early, a middle and the last."
    if len(set(taps)) != 3 or len(taps) != 3:
        yield ConfigError("head.tapped_layers", taps, "three different layers are tapped", fix)
    elif min(taps) < 0 or max(taps) >= shape.layers:
        yield ConfigError("head.tapped_layers", taps, f"the target's layers go from 0 to {shape.layers - 1}", fix)
    elif taps != sorted(taps):
        yield ConfigError("head.tapped_layers", taps, OUT_OF_ORDER, f"Write {sorted(taps)}.")


def _step_problems(plan: HeadPlan, row_tokens: int, processes: int) -> Iterator[ConfigError]:
    """Check most steps; in the few with whole rows some processes may have no row."""
    length = row_tokens if plan.whole_row_every == 1 else min(plan.crop_tokens, row_tokens)
    rows = max(1, plan.tokens_per_step // length)
    if rows < processes:
        problem = f"with rows of {length} tokens a step has {rows}, too few for {processes} processes"
        fix = f"Write {processes * length} or more, or start fewer processes."
        yield ConfigError("training.tokens_per_step", plan.tokens_per_step, problem, fix)


def _memory_problems(
    plan: HeadPlan, shape: TargetShape, row_tokens: int, memory_bytes: int, processes: int
) -> Iterator[ConfigError]:
    needed = peak_bytes(plan, shape, row_tokens)
    if needed <= memory_bytes:
        return
    left = f"{memory_bytes / 2**30:.1f} are available" + (" for each process" if processes > 1 else "")
    problem = f"a row of {row_tokens} tokens takes about {needed / 2**30:.1f} GiB, and {left}"
    more = next((2**power for power in range(1, 11) if _fits(plan, shape, row_tokens, memory_bytes, 2**power)), None)
    if plan.method == "p-eagle" and more is not None:
        fix = f"Write {more}, or lower --row-tokens of `peagle drafter generate`."
    else:
        fix = "Lower --row-tokens of `peagle drafter generate`, or use a machine with more memory."
    yield ConfigError("training.partitions", plan.partitions, problem, fix)


def _fits(plan: HeadPlan, shape: TargetShape, row_tokens: int, memory_bytes: int, partitions: int) -> bool:
    return partitions > plan.partitions and peak_bytes(plan, shape, row_tokens, partitions) <= memory_bytes


def peak_bytes(plan: HeadPlan, shape: TargetShape, row_tokens: int, partitions: int | None = None) -> int:
    """Estimate the peak memory of training: weights and optimizer, and the pass of the longest row.

    Includes for each position the inputs of each layer's matrices, and the logits of head and target with the loss's
    intermediate values; for each pair of positions, the mask and each layer's copy of it. Measured peaks of the
    embedded model's P-EAGLE head, for rows of 1,024 and 4,096 tokens, whole and in 8 chunks, are within a tenth.
    """
    partitions = partitions or plan.partitions
    hidden, vocabulary = shape.hidden_size, shape.vocab_size
    layer = 7 * hidden * hidden + 3 * hidden * shape.mlp_size
    head = plan.layers * layer + 3 * hidden * hidden + 2 * hidden * vocabulary
    weights = WORKSPACE_BYTES + shape.weights_bytes + 16 * head + 4 * hidden * vocabulary
    weights += 4 * head if plan.start is not None else 0
    of_layers = plan.layers * 3 * (12 * hidden + 4 * shape.mlp_size)
    of_logits = 24 * vocabulary
    if plan.method == "eagle3":
        positions = row_tokens * plan.trained_depth
        pairs = row_tokens**2 * plan.trained_depth * (plan.trained_depth + 1) // 2
        return weights + positions * (of_layers + of_logits) + pairs * (2 * plan.layers + 1)
    kept = [max(plan.depth_ratio**depth, plan.depth_ratio_min) for depth in range(1, plan.trained_depth)]
    positions = int(row_tokens * (1 + sum(kept)))
    if partitions == 1:
        return weights + positions * (of_layers + of_logits) + positions**2 * (1 + 2 * plan.layers)
    chains = (positions - row_tokens) // partitions
    pairs = max(row_tokens**2, chains * (row_tokens + chains)) + row_tokens**2
    return weights + (row_tokens + chains) * of_layers + (chains + row_tokens // partitions) * of_logits + pairs * 8
