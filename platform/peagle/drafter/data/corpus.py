"""The embedded model's text: Python's own standard library, its tokenizer, and token streams of both."""

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from peagle.errors import ConfigError

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mask|>"
SPECIAL_TOKENS = (END_OF_TEXT, MASK)

# Character maps and generated tables are not code that people complete.
LEFT_OUT = frozenset({"site-packages", "encodings", "pydoc_data", "lib2to3", "lib-dynload", "__pycache__"})
HELD_OUT_ONE_IN = 20


@dataclass(frozen=True, slots=True)
class Corpus:
    """Source files, split by a hash of each file's name so that the split never depends on order or machine."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    source: str


def standard_library(root: Path | None = None) -> Corpus:
    """Read the standard library of this interpreter (or of `root`), including its tests, without generated tables.

    Raises FileNotFoundError if `root` holds no Python source.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    train: list[str] = []
    held_out: list[str] = []
    for name, text in _sources(root):
        digest = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        (held_out if digest % HELD_OUT_ONE_IN == 0 else train).append(text)
    if not train or not held_out:
        raise FileNotFoundError(f"{root}: no Python source to train on; name a standard library folder")
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Corpus(tuple(train), tuple(held_out), f"CPython {version} standard library")


def _sources(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if LEFT_OUT.intersection(relative.parts) or path.name.startswith("_sysconfigdata"):
            continue
        try:
            yield relative.as_posix(), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer whose first ids are `SPECIAL_TOKENS`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of one of `SPECIAL_TOKENS`. Raises ConfigError if the tokenizer lacks it."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ConfigError("target", token, "its tokenizer has no such token", "Train it with `peagle drafter target`.")
    return found


def token_stream(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    """Return every text's tokens, each text ended by `END_OF_TEXT`: int32, shape [tokens]."""
    end = special_id(tokenizer, END_OF_TEXT)
    ids: list[int] = []
    for encoding in tokenizer.encode_batch(list(texts)):
        ids.extend(encoding.ids)
        ids.append(end)
    return np.asarray(ids, dtype=np.int32)


def read_tokenizer(target: Path) -> Tokenizer:
    """Read the tokenizer in a target's folder. Raises ConfigError if it is missing or cannot be read."""
    path = target / "tokenizer.json"
    if not path.is_file():
        raise ConfigError("target", str(path), "there is no tokenizer", "Add the tokenizer of the target's training.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower type
        raise ConfigError("target", str(path), f"it is not a tokenizer ({error})", "Copy the target again.") from None
