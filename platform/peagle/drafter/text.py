"""The text that heads learn from: prompts, and how their target went on."""

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from peagle.errors import ConfigError

REMEDY = "Write it with `peagle drafter generate`."


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """Prompts with their continuations, `tokens` int32 [rows, tokens]; the first `prompt_tokens`, int32 [rows], of each
    row are the prompt."""

    tokens: np.ndarray
    prompt_tokens: np.ndarray

    def save(self, path: Path) -> None:
        """Write `path`, whatever its name ends in."""
        with path.open("wb") as file:
            np.savez(file, tokens=self.tokens, prompt_tokens=self.prompt_tokens)

    @classmethod
    def load(cls, path: Path) -> "GeneratedText":
        """
        Raises:
            ConfigError: The file holds no generated text.
        """
        try:
            arrays = np.load(path)
            text = cls(arrays["tokens"], arrays["prompt_tokens"])
        except (OSError, ValueError, KeyError, IndexError, EOFError, zipfile.BadZipFile):
            raise ConfigError("generated", str(path), "it holds no generated text", REMEDY) from None
        if text.tokens.ndim != 2 or not len(text.tokens) or text.prompt_tokens.shape != text.tokens.shape[:1]:
            raise ConfigError("generated", str(path), "its rows and prompt lengths do not belong together", REMEDY)
        return text
