"""Training text of heads: prompts with their target's continuations."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peagle.errors import ConfigError

REMEDY = "Write it with `peagle drafter generate`."

# A crop with only a prompt would contain nothing to learn.
ANSWER_TOKENS_MIN = 8
# Follows the end of a text; a token of every vocabulary that is never read.
PADDING = 0


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """Prompts with their continuations, `tokens` int32 [rows, tokens].

    Each row begins with a prompt of `prompt_tokens`, int32 [rows]. The first `lengths`, int32 [rows], of its tokens are
    text, the rest is padding; without `lengths` every row is full.
    """

    tokens: np.ndarray
    prompt_tokens: np.ndarray
    lengths: np.ndarray | None = None

    @classmethod
    def of(cls, prompts: list[list[int]], answers: list[list[int]]) -> "GeneratedText":
        """Combine each prompt with its answer, padded to the longest row; rows of equal length are full."""
        rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        lengths = np.asarray([len(row) for row in rows], dtype=np.int32)
        tokens = np.full((len(rows), lengths.max()), PADDING, dtype=np.int32)
        for row, text in enumerate(rows):
            tokens[row, : len(text)] = text
        prompt_tokens = np.asarray([len(prompt) for prompt in prompts], dtype=np.int32)
        return cls(tokens, prompt_tokens, lengths if lengths.min() < lengths.max() else None)

    @property
    def row_lengths(self) -> np.ndarray:
        """Number of text tokens in each row: int32, [rows]."""
        rows, width = self.tokens.shape
        return np.full(rows, width, dtype=np.int32) if self.lengths is None else self.lengths

    @property
    def written(self) -> np.ndarray:
        """Tokens of all rows without padding, concatenated: int32, [tokens]."""
        return self.tokens[np.arange(self.tokens.shape[1]) < self.row_lengths[:, None]]

    def row(self, index: int) -> np.ndarray:
        """Return one row without padding: int32, [tokens]."""
        return self.tokens[index] if self.lengths is None else self.tokens[index, : self.lengths[index]]

    def rows(self) -> Iterator[tuple[np.ndarray, int]]:
        """Iterate over all rows without padding, with the length of each prompt."""
        return zip(map(self.row, range(len(self.tokens))), self.prompt_tokens.tolist(), strict=True)

    def first(self, rows: int | None) -> "GeneratedText":
        """Return the first `rows` rows; all rows for None."""
        lengths = None if self.lengths is None else self.lengths[:rows]
        return GeneratedText(self.tokens[:rows], self.prompt_tokens[:rows], lengths)

    def save(self, path: Path) -> None:
        """Write to exactly `path`, whatever its suffix."""
        arrays: dict[str, Any] = {"tokens": self.tokens, "prompt_tokens": self.prompt_tokens}
        if self.lengths is not None:
            arrays["lengths"] = self.lengths
        with path.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "GeneratedText":
        """Load a file. Raises ConfigError if it does not hold generated text."""
        try:
            arrays = np.load(path)
            text = cls(arrays["tokens"], arrays["prompt_tokens"], arrays.get("lengths"))
        except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
            raise ConfigError("generated", str(path), "it does not hold generated text", REMEDY) from None
        if not all(np.issubdtype(each.dtype, np.integer) for each in (text.tokens, text.prompt_tokens)):
            raise ConfigError("generated", str(path), "its tokens and prompt lengths are not whole numbers", REMEDY)
        if text.tokens.ndim != 2 or not text.tokens.size or text.prompt_tokens.shape != text.tokens.shape[:1]:
            raise ConfigError("generated", str(path), "its rows and prompt lengths do not match", REMEDY)
        if text.lengths is not None and not _fit(text.lengths, text.tokens):
            raise ConfigError("generated", str(path), "its rows and their lengths do not match", REMEDY)
        return text


def _fit(lengths: np.ndarray, tokens: np.ndarray) -> bool:
    counts = np.issubdtype(lengths.dtype, np.integer) and lengths.shape == tokens.shape[:1]
    return counts and bool((lengths > 0).all() and (lengths <= tokens.shape[1]).all())
