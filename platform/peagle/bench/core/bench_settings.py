"""All settings that define a measurement, as flat plain values that can be compared for equality."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peagle.bench.core.options import LoadOptions
from peagle.config import Checkpoint, Deployment
from peagle.engine.checkpoint import fingerprint
from peagle.errors import ConfigError
from peagle.prompt_file import Prompt

SCHEMA_VERSION = 2
"""Version of `result.json` and `passes.jsonl`; increased when readers of the older form would misread the newer."""

Settings = Mapping[str, Any]


def flat_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return each leaf of `values` under its own name, after the schema version."""
    return dict(_leaves("", {"schema_version": SCHEMA_VERSION, **values}))


def load_settings(load: LoadOptions, texts: Sequence[Prompt]) -> dict[str, Any]:
    """Return every option of the load by name, with a digest of the prompts."""
    values = asdict(load) | {"prompts_from": digest(list(texts))}
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


def deployment_settings(deployment: Deployment) -> dict[str, Any]:
    """Return the whole deployment, with checkpoints identified by their weights."""
    return deployment.model_dump(mode="json") | {
        "target": weights_of(deployment.target),
        "drafter": weights_of(deployment.drafter) if deployment.drafter and deployment.speculates else None,
    }


def refuse_other(asked: Settings, kept: Settings, folder: Path) -> None:
    """Raise ConfigError with the first setting that differs from those of the run in `folder`."""
    for name in [*asked, *(name for name in kept if name not in asked)]:
        if asked.get(name) != kept.get(name):
            problem = f"it has a run with another {name}: {kept.get(name)!r} there, {asked.get(name)!r} now"
            raise ConfigError("--out", str(folder), problem, "Name a new folder, or use the settings of that run.")


def weights_of(checkpoint: Checkpoint) -> str:
    """Return an identity of the weights, independent of their location: a folder's fingerprint, or the revision."""
    if checkpoint.is_local:
        return fingerprint(Path(checkpoint.source).expanduser())
    return f"{checkpoint.source}@{checkpoint.revision or 'main'}"


def digest(value: Any) -> str:
    """Return a short digest of a plain value, the same for equal values."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), below)
    else:
        yield name, value
