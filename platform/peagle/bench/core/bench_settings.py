"""Everything that decides what a comparison measures, as flat plain values: two of them are alike or they are not."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peagle.bench.core.options import Comparison, EndpointOptions, LoadOptions, OverheadOptions
from peagle.bench.engines.engine_plan import EnginePlan
from peagle.config import Checkpoint, Deployment
from peagle.engine.checkpoint import fingerprint
from peagle.errors import ConfigError
from peagle.prompt_file import Prompt

SCHEMA_VERSION = 2
"""Of `result.json` and `passes.jsonl`; it goes up when a reader of the older form would misread the newer."""
OVERHEAD, ENDPOINTS = "overhead", "endpoints"

Settings = Mapping[str, Any]


def settings_of(
    plans: Sequence[EnginePlan], comparison: Comparison, texts: Sequence[Prompt], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The options, every engine's deployment and checkpoints, and the machine; each leaf under its own name."""
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "engines": [plan.name for plan in plans],
        "--concurrency": list(comparison.concurrencies),
        "--depths": list(comparison.depths),
        **_of_load(comparison.load, texts),
        "adaptive": comparison.adaptive,
        "--fixed": comparison.fixed,
        "--shifting": comparison.shifting,
        "machine": dict(machine),
    }
    for plan in plans:
        values[plan.name] = _of_deployment(plan.deployment)
    return dict(_leaves("", values))


def overhead_settings(
    deployment: Deployment, options: OverheadOptions, texts: Sequence[Prompt], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """The same of a comparison of servers, which all have one deployment."""
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": OVERHEAD,
        "--sides": list(options.sides),
        "--concurrency": list(options.concurrencies),
        **_of_load(options.load, texts),
        "machine": dict(machine),
        "deployment": _of_deployment(deployment),
    }
    return dict(_leaves("", values))


def endpoint_settings(
    endpoints: Sequence[Mapping[str, str]],
    options: EndpointOptions,
    texts: Sequence[Prompt],
    machine: Mapping[str, Any],
) -> dict[str, Any]:
    """The same of a measurement of running servers, of which no more is known than where they are."""
    values: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "kind": ENDPOINTS,
        "endpoints": {each["name"]: {**each} for each in endpoints},
        "--depths": list(options.depths),
        "--concurrency": list(options.concurrencies),
        **_of_load(options.load, texts),
        "machine": dict(machine),
    }
    return dict(_leaves("", values))


def _of_load(load: LoadOptions, texts: Sequence[Prompt]) -> dict[str, Any]:
    values = asdict(load) | {"prompts_from": digest(list(texts))}
    return {f"--{name.replace('_', '-')}": value for name, value in values.items()}


def _of_deployment(deployment: Deployment) -> dict[str, Any]:
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
