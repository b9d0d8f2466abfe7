"""Reads a checkpoint folder's metadata: config.json and the headers of its safetensors files.

Reads no weights and needs no torch, so a checkpoint of any size takes well under a second.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.errors import ConfigError

INDEX = "model.safetensors.index.json"
OTHER_FORMATS = ("*.bin", "*.pt", "*.pth", "*.gguf")
AGAIN = "Download or copy the checkpoint again."
# Key of a head's `config.json`: the target's layers that the head reads.
TAPS_KEY = "eagle_aux_hidden_state_layer_ids"
# Folder of a Markov head within a P-EAGLE head's folder; its rank is in `config.json` there.
MARKOV_FOLDER = "markov_head"
MARKOV_RANK_KEY = "markov_rank"
# Also in that `config.json`: a draft token's gain for each token of an n-gram that it has followed in the text.
NGRAM_BIAS_KEY = "ngram_bias_nats"
NGRAM_BIAS_NATS_MAX = 10.0

# Limit of the safetensors format itself.
MAX_HEADER_BYTES = 100_000_000
MAX_JSON_BYTES = 256 * 1024 * 1024
# Bytes at the end of each file that a fingerprint covers.
_TAIL_BYTES = 65536

# Bytes of one element, by the format's name of its type; for other types only the extent is checked.
_ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor's type, by the format's name (`BF16`), and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Folder:
    """A local checkpoint; `field` is its name for the user, `remedy` the fix if it is not a folder."""

    path: Path
    field: str
    remedy: str = "Name a folder with config.json and weights, or a repository as org/name."

    def wrong(self, file: str, value: object, problem: str, fix: str) -> ConfigError:
        """Return the error for `value` at `file` (`config.json: hidden_size`)."""
        return ConfigError(f"{self.field}: {_shown(self.path / file)}", value, problem, fix)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read the JSON object in the file `name`.

        Raises ConfigError if the file is missing, or does not hold a JSON object.
        """
        try:
            if not self.path.is_dir():
                problem = "it is a file, not a folder" if self.path.exists() else "there is no such folder"
                raise ConfigError(self.field, _shown(self.path), problem, self.remedy)
            with (self.path / name).open("rb") as file:
                content = file.read(MAX_JSON_BYTES)
            value = json.loads(content)
        except FileNotFoundError:
            raise self.wrong(name, None, "there is no such file", AGAIN) from None
        except OSError as error:
            raise self.wrong(name, None, f"it cannot be read: {error.strerror}", "Make it readable.") from None
        except (ValueError, RecursionError) as error:
            raise self.wrong(name, None, f"it is not JSON: {error}", AGAIN) from None
        if not isinstance(value, dict):
            raise self.wrong(name, None, f"it holds a {type(value).__name__}, not a JSON object", AGAIN)
        return value

    def read_tensors(self) -> dict[str, Tensor] | None:
        """Read every tensor's type and shape; None if the weights are not safetensors.

        Raises ConfigError if there are no weights, a shard is missing, or a file is damaged or truncated.
        """
        try:
            if (self.path / INDEX).exists():
                return self._read_indexed()
            files = sorted(self.path.glob("*.safetensors"))
            if not files and any(any(self.path.glob(pattern)) for pattern in OTHER_FORMATS):
                return None
        except OSError as error:
            raise self.wrong("", None, f"it cannot be read: {error.strerror}", "Make it readable.") from None
        if not files:
            raise self.wrong("model.safetensors", None, "there are no weights", AGAIN)
        return {name: tensor for file in files for name, tensor in self._read_header(file.name).items()}

    def _read_indexed(self) -> dict[str, Tensor]:
        places = self.read_json(INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(shard, str) for shard in places.values()):
            raise self.wrong(f"{INDEX}: weight_map", places, "it must map tensors to files", AGAIN)
        shards = {shard: self._read_header(shard) for shard in sorted(set(places.values()))}
        for name, shard in places.items():
            if name not in shards[shard]:
                raise self.wrong(shard, None, f"it lacks the tensor {name}, which {INDEX} puts there", AGAIN)
        return {name: shards[shard][name] for name, shard in places.items()}

    def _read_header(self, name: str) -> dict[str, Tensor]:
        try:
            with (self.path / name).open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = file.read(8)
                length = int.from_bytes(start, "little")
                if start == b"version ":
                    raise self.wrong(name, None, "it is a Git LFS pointer, not the weights", "Run git lfs pull.")
                if len(start) < 8 or length > MAX_HEADER_BYTES or 8 + length > size:
                    raise self.wrong(name, None, f"it is not a complete safetensors file ({size} bytes)", AGAIN)
                header = json.loads(file.read(length))
            tensors = {key: _tensor(entry, size - 8 - length) for key, entry in header.items() if key != "__metadata__"}
        except FileNotFoundError:
            raise self.wrong(name, None, "there is no such file", AGAIN) from None
        except OSError as error:
            raise self.wrong(name, None, f"it cannot be read: {error.strerror}", "Make it readable.") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self.wrong(name, None, "its header is damaged", AGAIN) from None
        for key, tensor in tensors.items():
            if tensor is None:
                raise self.wrong(name, None, f"it is cut short: {key} ends after the file's {size} bytes", AGAIN)
        return {key: tensor for key, tensor in tensors.items() if tensor is not None}


def _tensor(entry: Any, data_bytes: int) -> Tensor | None:
    """Parse one header entry; None if its data end after the file's `data_bytes`.

    Raises ValueError, KeyError or TypeError if the entry does not follow the format.
    """
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError("a shape or an offset is not a whole number")
    tensor = Tensor(str(entry["dtype"]), tuple(shape))
    expected = _ELEMENT_BYTES.get(tensor.dtype)
    if end < begin or (expected is not None and end - begin != tensor.elements * expected):
        raise ValueError("offsets and shape disagree")
    return tensor if end <= data_bytes else None


def _shown(path: Path) -> str:
    """Return `path` relative to the current folder if it lies within it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def fingerprint(folder: Path) -> str:
    """Return a short fingerprint of a folder's content: the names, sizes and last bytes of its files."""
    known = hashlib.sha256()
    paths = [*folder.iterdir(), *(folder / MARKOV_FOLDER).glob("*")]
    for file in sorted(path for path in paths if path.is_file()):
        size = file.stat().st_size
        known.update(f"{file.relative_to(folder).as_posix()} {size}\n".encode())
        with file.open("rb") as content:
            content.seek(max(0, size - _TAIL_BYTES))
            known.update(content.read())
    return known.hexdigest()[:16]


def read_ngram_bias(files: Folder, config: Mapping[str, Any]) -> float:
    """Return `ngram_bias_nats` of a head's `config.json`; 0 if it is not set.

    Raises ConfigError unless it is a number from 0 to NGRAM_BIAS_NATS_MAX.
    """
    nats = config.get(NGRAM_BIAS_KEY, 0.0)
    if isinstance(nats, bool) or not isinstance(nats, int | float) or not 0 <= nats <= NGRAM_BIAS_NATS_MAX:
        problem = f"it must be a number from 0 to {NGRAM_BIAS_NATS_MAX:g}"
        raise files.wrong(f"config.json: {NGRAM_BIAS_KEY}", nats, problem, "Write 0.85, or remove it.")
    return float(nats)
