"""The API keys file, in one of two formats: a key on each line, or YAML with names, weights and limits."""

import codecs
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from peagle.config.schema import Strict, parse, wrong
from peagle.config.yaml_file import lines_of, parse_mapping
from peagle.errors import CombinedConfigError, ConfigError
from peagle.router.fairness.client_terms import WEIGHT_MAX, WEIGHT_MIN, Client, ClientClass, Limits

MAX_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
# A file is YAML if its first line that is not empty or a comment begins like this.
_YAML_START = re.compile(rb"---\s*$|\{?\s*[\"']?keys[\"']?\s*:(\s|$)")
# A line of the other format looks like this only if `keys:` is missing or misspelled.
_YAML_FIELD = re.compile(rb"(-\s+)?(name|key|key_sha256|weight|class|limits)\s*:(\s|$)")
# Most problems reported for one file.
_PROBLEMS_MAX = 20
_EXAMPLE = "Write a key on each line, or YAML: keys: [{name: team-a, key: ...}]."

Clients = Mapping[bytes, Client]
"""Clients by the SHA-256 digest of their key."""


class LimitsEntry(Strict):
    """Limits of a key; see `Limits`."""

    requests_per_minute: int | None = Field(default=None, ge=1, le=10**9)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12)
    requests_at_once: int | None = Field(default=None, ge=1, le=10**9)
    tokens_waiting: int | None = Field(default=None, ge=1, le=10**12)


class KeyEntry(Strict):
    """One key, as text or as its SHA-256 in hexadecimal."""

    name: str
    key: str | None = Field(default=None, max_length=1024)
    key_sha256: str | None = None
    weight: float = Field(default=1.0, ge=WEIGHT_MIN, le=WEIGHT_MAX)
    class_: Literal["interactive", "batch"] = Field(default="interactive", alias="class")
    limits: LimitsEntry = LimitsEntry()

    @field_validator("name")
    @classmethod
    def _is_plain(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise wrong("", name, "it must be 1 to 64 letters, digits, dots, dashes and underscores", "Rename it.")
        return name

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if (self.key is None) == (self.key_sha256 is None):
            problem = "it has neither key nor key_sha256" if self.key is None else "it has both key and key_sha256"
            raise wrong("key", None, problem, "Write one of them.")
        if self.key is not None and (not self.key or self.key != self.key.strip() or not self.key.isprintable()):
            raise wrong("key", None, "it is empty, or contains a line break or surrounding spaces", "Remove them.")
        if self.key_sha256 is not None and not _DIGEST.fullmatch(self.key_sha256):
            raise wrong("key_sha256", None, "it is not 64 hexadecimal digits", "Create it with sha256sum.")
        return self

    def digest(self) -> bytes:
        return digest_of(self.key.encode()) if self.key is not None else bytes.fromhex(self.key_sha256 or "")

    def client(self) -> Client:
        return Client(self.name, self.weight, ClientClass(self.class_), Limits(**self.limits.model_dump()))


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def read_bytes(path: Path) -> bytes:
    """Read the file. Raises ConfigError if it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            "--keys-file", str(path), f"it cannot be read: {error.strerror}", "Name a readable file."
        ) from None
    if len(content) > MAX_BYTES:
        raise ConfigError("--keys-file", str(path), f"it is larger than {MAX_BYTES} bytes", "Remove old keys.")
    return content.removeprefix(codecs.BOM_UTF8)


def parse_clients(content: bytes, path: str) -> Clients:
    """Parse the clients of a file's content.

    Raises ConfigError if it has no key or is invalid; it names line and field, never a key.
    """
    lines = [(number, line.strip()) for number, line in enumerate(content.splitlines(), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith(b"#")]
    if lines and _YAML_START.match(lines[0][1]):
        clients = _of_yaml(content, path)
    else:
        for number, line in lines:
            if _YAML_FIELD.match(line):
                field = line.lstrip(b"- ").partition(b":")[0].decode()
                problem = "it looks like YAML, which must begin with keys:"
                raise ConfigError(f"{path}, line {number}: {field}", None, problem, _EXAMPLE)
        clients = {(digest := digest_of(line)): Client(f"key-{digest.hex()[:8]}") for _, line in lines}
    if not clients:
        raise ConfigError("--keys-file", path, "it has no key, so every request would be refused", _EXAMPLE)
    return clients


def _of_yaml(content: bytes, path: str) -> Clients:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(path, None, f"byte {error.start} is not UTF-8", "Save it as UTF-8.") from None
    raw = parse_mapping(text, path, "README.md")
    for number, name in zip(lines_of(text), raw, strict=True):
        if name != "keys":
            raise ConfigError(f"{path}, line {number}: {str(name)[:40]}", None, "there is no such field", "Remove it.")
    entries = raw.get("keys")
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: keys", None, "it must be a list of keys", _EXAMPLE)
    return _of_entries(entries, text, path)


def _of_entries(entries: list[Any], text: str, path: str) -> Clients:
    clients: dict[bytes, Client] = {}
    named: dict[str, int] = {}
    problems: list[ConfigError] = []
    for index, (raw, line) in enumerate(zip(entries, lines_of(text, "keys"), strict=True)):
        try:
            entry = _entry(raw, text, index, line)
        except ConfigError as error:
            problems += error.problems
            continue
        digest = entry.digest()
        if entry.name in named:
            problem = f"line {named[entry.name]} has the same name"
            problems.append(ConfigError(f"line {line}: name", entry.name, problem, "Give each key its own name."))
        elif digest in clients:
            problem = f"it is also the key of {clients[digest].name}"
            problems.append(ConfigError(f"line {line}: key", None, problem, "Give each name its own key."))
        named.setdefault(entry.name, line)
        clients[digest] = entry.client()
    if problems:
        first = problems[:_PROBLEMS_MAX]
        raise CombinedConfigError.of([ConfigError(f"{path}, {p.field}", p.value, p.problem, p.fix) for p in first])
    return clients


def _entry(raw: Any, text: str, index: int, line: int) -> KeyEntry:
    """Parse one entry of the list. Raises ConfigError whose fields begin with their line."""
    if not isinstance(raw, dict):
        raise ConfigError(f"line {line}: keys", None, "it must have the fields of a key", _EXAMPLE)
    lines = dict(zip(map(str, raw), lines_of(text, "keys", index), strict=True))
    try:
        return parse(KeyEntry, raw, "", "a key", secret=("key", "key_sha256"))
    except ConfigError as error:
        raise CombinedConfigError.of([_placed(problem, lines, line) for problem in error.problems]) from None


def _placed(problem: ConfigError, lines: Mapping[str, int], line: int) -> ConfigError:
    """Return the same problem with its line; values of fields that hold keys are not shown."""
    field = problem.field.removeprefix(": ")
    top = field.partition(".")[0]
    value = problem.value if top in ("name", "weight", "class", "limits") else None
    return ConfigError(f"line {lines.get(top, line)}: {field}", value, problem.problem, problem.fix)
