"""Prompts for a target: windows of a text, or the prompts and chats of a JSON-lines file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from peagle.drafter.data.corpus import END_OF_TEXT, standard_library, token_stream
from peagle.drafter.data.generated_text import ANSWER_TOKENS_MIN
from peagle.errors import ConfigError
from peagle.prompt_file import encode_prompt, read_prompt_file

OPTION = "--prompts-from"
LINES = ".jsonl"


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """How rows are generated. A share of `greedy_ratio` of the answers is greedy, the rest is sampled.

    Greedy text follows from its prompt, so every later token can be learned from it. From sampled text a draft of
    several tokens can only learn probabilities; a share of it keeps the head useful at a temperature above 0.

    For each 256 tokens of a row, a window has from `prompt_tokens_min` to below `prompt_tokens_max` tokens, and the
    answer fills the row. Rows from a file's prompts end with their answer, after at most `row_tokens`.
    """

    prompts: int = 12_800
    prompt_tokens_min: int = 136
    prompt_tokens_max: int = 184
    row_tokens: int = 256
    greedy_ratio: float = 0.95
    temperature: float = 0.8
    repeats_max: float = 0.6
    seed: int = 7

    @property
    def window_tokens(self) -> tuple[int, int]:
        """Minimum and exclusive maximum tokens of a window in a row of `row_tokens`."""
        return self.prompt_tokens_min * self.row_tokens // 256, self.prompt_tokens_max * self.row_tokens // 256

    def check(self, context_tokens: int) -> None:
        """Raise ConfigError if rows are longer than the target's context."""
        if self.row_tokens > context_tokens:
            problem = f"the target's context has {context_tokens} tokens"
            raise ConfigError("--row-tokens", self.row_tokens, problem, f"Write {context_tokens} or fewer.")


@dataclass(frozen=True, slots=True)
class Asked:
    """Prompts as token ids, and whether each is answered greedily: bool, [prompts].

    If `ends`, answers end at the model's end of text, otherwise when the row is full. `too_long` counts further prompts
    that left no room for an answer.
    """

    prompts: list[list[int]]
    greedy: np.ndarray
    ends: bool
    too_long: int = 0


def ask(
    target: Path,
    tokenizer: Tokenizer,
    plan: GenerationPlan,
    file: Path | None = None,
    *,
    as_chat: bool = False,
    held_out: bool = False,
) -> Asked:
    """Return a `target`'s prompts: those of a `.jsonl`, or windows of another file's text or the standard library.

    Args:
        tokenizer: The tokenizer in the target's folder.
        as_chat: Whether a text in a `.jsonl` is a user message.
        held_out: Whether to use the standard library's held-out files.

    Raises:
        ConfigError: The file cannot be read, or holds no prompts.
    """
    if file is not None and file.suffix == LINES:
        return lines(file, AutoTokenizer.from_pretrained(target), plan, as_chat=as_chat)
    if as_chat:
        named = None if file is None else str(file)
        raise ConfigError("--chat", named, f"only prompts of a {LINES} can be chats", f"Name one as {OPTION}.")
    if file is not None:
        return windows(np.asarray(tokenizer.encode(read_text(file)).ids, dtype=np.int32), plan)
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        problem = f"the target's tokenizer has no {END_OF_TEXT} to end the standard library's files"
        raise ConfigError(OPTION, None, problem, f"Name a {LINES} of prompts, or a file of UTF-8 text.")
    corpus = standard_library()
    return windows(token_stream(tokenizer, corpus.held_out if held_out else corpus.train), plan)


def windows(tokens: np.ndarray, plan: GenerationPlan) -> Asked:
    """Draw windows of `tokens`, int32 [tokens], by the plan's seed.

    Raises ConfigError if the text is shorter than the longest window.
    """
    shortest, longest = plan.window_tokens
    if len(tokens) <= longest:
        problem = f"a text of this many tokens has no windows of up to {longest}"
        raise ConfigError(OPTION, len(tokens), problem, "Name a longer text, or lower --row-tokens.")
    draw = np.random.default_rng(plan.seed)
    lengths = draw.integers(shortest, longest, plan.prompts)
    starts = draw.integers(0, len(tokens) - longest, plan.prompts)
    prompts = [tokens[start : start + length].tolist() for start, length in zip(starts, lengths, strict=True)]
    return Asked(prompts, draw.random(plan.prompts) < plan.greedy_ratio, ends=False)


def lines(file: Path, tokenizer: Any, plan: GenerationPlan, *, as_chat: bool) -> Asked:
    """Read the prompts of a JSON-lines file, shuffled by the plan's seed and limited to its number.

    Args:
        tokenizer: The target's Hugging Face tokenizer, with its chat template.
        as_chat: Whether a text is a user message.

    Raises:
        ConfigError: The file holds no prompt, or none leaves room for an answer; or it holds a chat and there is no
            chat template.
    """
    found = read_prompt_file(file, as_chat=as_chat)
    draw = np.random.default_rng(plan.seed)
    chosen = [found[index] for index in draw.permutation(len(found))[: plan.prompts]]
    encoded = [encode_prompt(prompt, tokenizer) for prompt in chosen]
    room = plan.row_tokens - ANSWER_TOKENS_MIN
    prompts = [tokens for tokens in encoded if len(tokens) <= room]
    if not prompts:
        problem = f"rows of {plan.row_tokens} tokens have no room for any of its prompts and an answer"
        fix = f"Raise --row-tokens to {min(map(len, encoded)) + ANSWER_TOKENS_MIN} or more."
        raise ConfigError(OPTION, str(file), problem, fix)
    greedy = draw.random(len(prompts)) < plan.greedy_ratio
    return Asked(prompts, greedy, ends=True, too_long=len(encoded) - len(prompts))


def read_text(file: Path) -> str:
    """Read UTF-8 text. Raises ConfigError if the file cannot be read as such."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(OPTION, str(file), f"byte {error.start} is not UTF-8", "Save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(OPTION, str(file), f"it cannot be read: {error.strerror}", "Name another.") from None
