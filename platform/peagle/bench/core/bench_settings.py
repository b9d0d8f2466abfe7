"""Everything that decides what a comparison measures, as flat plain values: two of them are alike or they are not."""

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
"""Of `result.json` and `passes.jsonl`; it goes up when a reader of the older form would misread the newer."""

Settings = Mapping[str, Any]


def flat_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Each leaf of `values` under its own name, behind the version of their form."""
    return dict(_leaves("", {"schema_version": SCHEMA_VERSION, **values}))


def load_settings(load: LoadOptions, texts: Sequence[Prompt]) -> dict[str, Any]:
    """Every option of the load by its name, that of the prompts with their digest."""
    values = asdict(load) | {"prompts_from": digest(list(texts))}
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


def deployment_settings(deployment: Deployment) -> dict[str, Any]:
    """The whole deployment, its checkpoints by their weights."""
    return deployment.model_dump(mode="json") | {
        "target": weights_of(deployment.target),
        "drafter": weights_of(deployment.drafter) if deployment.drafter and deployment.speculates else None,
    }


def refuse_other(asked: Settings, kept: Settings, folder: Path) -> None:
    """Raises ConfigError, which names the first setting that differs, where those that `folder` holds are others."""
    for name in [*asked, *(name for name in kept if name not in asked)]:
        if asked.get(name) != kept.get(name):
            problem = f"it holds a run with another {name}: {kept.get(name)!r} there, {asked.get(name)!r} now"
            raise ConfigError(
                "--out", str(folder), problem, "Name a new folder, or go on with what the run began with."
            )


def weights_of(checkpoint: Checkpoint) -> str:
    """Which weights these are, wherever they lie: the fingerprint of a folder, else the revision."""
    if checkpoint.is_local:
        return fingerprint(Path(checkpoint.source).expanduser())
    return f"{checkpoint.source}@{checkpoint.revision or 'main'}"


def digest(value: Any) -> str:
    """A short name for a plain value: the same for equal ones."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), below)
    else:
        yield name, value
