"""Reads deployments before Ray is imported, so that an invalid file is reported within a second."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peagle.api.api_settings import ApiSettings
from peagle.config import Deployment, load_deployment, parse_deployment
from peagle.engine.arguments import engine_arguments
from peagle.errors import ConfigError

# Default KV cache size of a CPU replica.
CPU_CACHE_BYTES = 512 << 20


def read_deployments(sources: object) -> tuple[Deployment, ...]:
    """Read all deployments. Raises ConfigError if there are none, one is invalid, or two have the same name."""
    if isinstance(sources, str | Path | Mapping):
        sources = [sources]
    if not isinstance(sources, Sequence) or not sources:
        raise ConfigError("args.deployments", sources, "it has no deployment", "List files of deployments/.")
    deployments = tuple(_read(source, f"args.deployments[{i}]") for i, source in enumerate(sources))
    names = [deployment.name for deployment in deployments]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ConfigError(
                f"args.deployments[{index}].name", name, "another deployment has this name", "Give each its own name."
            )
    return deployments


def _read(source: object, origin: str) -> Deployment:
    match source:
        case str() | Path():
            return load_deployment(Path(source))
        case Mapping():
            return parse_deployment(source, origin=origin, base=Path.cwd())
        case _:
            raise ConfigError(origin, source, "it is neither a path nor a mapping", "Name a file of deployments/.")


def engine_settings(deployment: Deployment, settings: ApiSettings | None = None) -> dict[str, Any]:
    """Return vLLM's arguments. Answers report cached prompt tokens, as OpenAI's do.

    On CPU the KV cache is bounded, because vLLM would otherwise take most of the machine's memory.
    """
    arguments = engine_arguments(deployment, (settings or ApiSettings()).grammar.max_mask_s)
    arguments.setdefault("enable_prompt_tokens_details", True)
    if deployment.resources.accelerator == "cpu" and "VLLM_CPU_KVCACHE_SPACE" not in deployment.environment:
        arguments.setdefault("kv_cache_memory_bytes", CPU_CACHE_BYTES)
    return arguments
