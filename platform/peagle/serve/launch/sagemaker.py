"""Makes a deployment from the environment of an Amazon SageMaker container, as vLLM's own images do.

Each `SM_VLLM_NAME` is an argument of vLLM: SM_VLLM_MAX_MODEL_LEN=4096 is `--max-model-len 4096`, and a variable with an
empty value, such as SM_VLLM_ENFORCE_EAGER, is a switch.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from peagle.config import PLATFORM_OWNED_ARGUMENTS
from peagle.config.schema import closest
from peagle.engine.checks.argument_checks import Expected, argument_types, expected, vllm_sources
from peagle.errors import CombinedConfigError, ConfigError, StartupError
from peagle.host.terminal import log_path
from peagle.serve.launch import run
from peagle.serve.launch.machine_checks import installed_engine

PREFIX = "SM_VLLM_"
PORT = 8080
"""Port that SageMaker calls."""
MODEL_FOLDER = Path("/opt", "ml", "model")
"""Folder in which SageMaker places the endpoint's model."""

_SPECULATIVE = "speculative_config"
_SPECULATIVE_KEYS = ("method", "model", "revision", "num_speculative_tokens", "parallel_drafting")
# Settings fixed by SageMaker's rules.
_FIXED = {"port": "SageMaker calls port 8080", "host": "SageMaker calls from outside the container"}
# Arguments that become deployment fields outside `engine`.
_PLACED = ("model", "revision", "served_model_name", "tensor_parallel_size", "data_parallel_size", _SPECULATIVE)
_SWITCH = {"": True, "true": True, "1": True, "false": False, "0": False}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}", re.ASCII)


def serve_sagemaker() -> int:
    """Serve the deployment in this process's environment until SIGTERM. Returns and raises as `run.run` does."""
    deployment = sagemaker_deployment(os.environ, installed_engine()[0] or "gpu")
    text = yaml.safe_dump(deployment, sort_keys=False)
    file = log_path(PORT).with_name("sagemaker.yaml")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StartupError(f"{file} cannot be written ({error.strerror})", "Set XDG_STATE_HOME to a folder") from None
    print(f"{file}:\n{text}", flush=True)
    return run.run([file], host="0.0.0.0", port=PORT)


def sagemaker_deployment(
    environment: Mapping[str, str], accelerator: str, model_folder: Path = MODEL_FOLDER
) -> dict[str, Any]:
    """Return the deployment described by the environment, as in a deployment file.

    Args:
        environment: Variables; those without the prefix are ignored.
        accelerator: `cpu` or `gpu`, as the installed vLLM is built.
        model_folder: The model to serve unless SM_VLLM_MODEL names another.

    Raises:
        ConfigError: A variable is unknown or invalid, or there is no model; it names all invalid variables.
        StartupError: vLLM is not installed, so its arguments are unknown.
    """
    if (sources := vllm_sources()) is None:
        raise StartupError("vLLM is not installed", "Install peagle[cpu] or, on a machine with a GPU, peagle[gpu].")
    types = argument_types(sources)
    kinds = {name: expected(annotation, sources) for name, annotation in types.items()}
    arguments: dict[str, Any] = {}
    problems: list[ConfigError] = []
    for variable, text in sorted(environment.items()):
        if variable.startswith(PREFIX):
            try:
                name, value = _argument(variable, text.strip(), kinds)
                arguments[name] = value
            except ConfigError as error:
                problems.append(error)
    if problems:
        raise CombinedConfigError.of(problems)
    return _placed(arguments, accelerator, model_folder)


def _argument(variable: str, text: str, kinds: Mapping[str, Expected | None]) -> tuple[str, Any]:
    """Return the name and value of the vLLM argument that a variable sets."""
    name = variable.removeprefix(PREFIX).lower()
    if name in _FIXED:
        raise ConfigError(variable, text, _FIXED[name], "Remove it.")
    if name in PLATFORM_OWNED_ARGUMENTS and name not in _PLACED:
        owner = "SM_VLLM_SPECULATIVE_CONFIG" if name.startswith("spec_") else "the platform itself"
        raise ConfigError(variable, text, f"it is set by {owner}", "Remove it.")
    off = name.removeprefix("no_")
    if name not in kinds and off in kinds and _is_switch(kinds[off]) and _SWITCH.get(text.lower()):
        return off, False
    if name != "model" and name not in kinds:
        near = closest(off, kinds)
        fix = (
            f"Did you mean {PREFIX}{near.upper()}?" if near else "Remove it; vLLM's documentation lists its arguments."
        )
        raise ConfigError(variable, text, "it is not a vLLM argument that peagle supports", fix)
    wanted = kinds.get(name)
    value = _value(text, wanted)
    if wanted is not None and not wanted.takes(value):
        raise ConfigError(variable, text, f"vLLM expects {wanted}", "Write a value of that type.")
    return name, value


def _is_switch(wanted: Expected | None) -> bool:
    return wanted is not None and bool in wanted.kinds


def _value(text: str, wanted: Expected | None) -> Any:
    """Parse a variable's text as the type that vLLM expects: JSON, unless it is a switch or text."""
    if _is_switch(wanted) and text.lower() in _SWITCH:
        return _SWITCH[text.lower()]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if wanted is None:
        # Other types, such as a configuration object: a JSON object, or text that vLLM parses itself.
        return value if isinstance(value, dict | list) else text
    return value if wanted.takes(value) else text


def _placed(arguments: dict[str, Any], accelerator: str, model_folder: Path) -> dict[str, Any]:
    """Place each argument into its field of a deployment."""
    engine = {name: value for name, value in arguments.items() if name not in _PLACED}
    source = _source(arguments.get("model"), model_folder)
    target = {"source": source}
    if arguments.get("revision"):
        target["revision"] = arguments["revision"]
    resources = {"accelerator": accelerator, "tensor_parallel_size": arguments.get("tensor_parallel_size") or 1}
    replicas = arguments.get("data_parallel_size") or 1
    return {
        "name": _name(arguments.get("served_model_name"), source),
        "target": target,
        **_speculation(arguments.get(_SPECULATIVE)),
        **({"engine": engine} if engine else {}),
        "replicas": {"min": replicas, "max": replicas},
        "resources": resources,
    }


def _source(model: str | None, model_folder: Path) -> str:
    if model:
        return model
    if not (model_folder / "config.json").is_file():
        problem = f"it is not set, and {model_folder} has no model (config.json)"
        raise ConfigError(
            f"{PREFIX}MODEL", None, problem, "Name a repository as org/name, or give the endpoint a model."
        )
    return str(model_folder)


def _name(served: Any, source: str) -> str:
    """Return the model's public name: the given name, or else the repository or folder name."""
    if isinstance(served, list):
        if len(served) != 1:
            raise ConfigError(f"{PREFIX}SERVED_MODEL_NAME", served, "a model has exactly one name", "Write one name.")
        served = served[0]
    name = served or (Path(source).name if source.startswith((".", "/", "~")) else source)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problem = "it must start with a letter or digit and contain only these and . _ / -, at most 128"
        raise ConfigError(f"{PREFIX}SERVED_MODEL_NAME", name, problem, "Set it to such a name.")
    return name


def _speculation(config: dict[str, Any] | None) -> dict[str, Any]:
    """Return the `drafter` and `speculation` sections for vLLM's `speculative_config`."""
    if not config:
        return {"speculation": {"enabled": False}}
    at = f"{PREFIX}SPECULATIVE_CONFIG"
    for key, value in config.items():
        if key not in _SPECULATIVE_KEYS:
            problem = "it is not a drafter setting that peagle supports"
            raise ConfigError(f"{at}.{key}", value, problem, f"Remove it. Known: {', '.join(_SPECULATIVE_KEYS)}.")
    if config.get("method", "eagle3") != "eagle3":
        problem = "peagle drafts with P-EAGLE and EAGLE-3 heads"
        raise ConfigError(
            f"{at}.method", config["method"], problem, 'Write "eagle3", for P-EAGLE with parallel_drafting.'
        )
    if not isinstance(model := config.get("model"), str):
        raise ConfigError(f"{at}.model", model, "it must name the draft head", "Write a repository or a folder.")
    depth = config.get("num_speculative_tokens")
    if not isinstance(depth, int) or isinstance(depth, bool) or not 1 <= depth <= 64:
        raise ConfigError(f"{at}.num_speculative_tokens", depth, "it must be an integer from 1 to 64", "Correct it.")
    drafter = {"source": model, "method": "p-eagle" if config.get("parallel_drafting") else "eagle3"}
    if config.get("revision"):
        drafter["revision"] = config["revision"]
    return {
        "drafter": {**drafter, "trained_depth": depth},
        "speculation": {"depth_max": depth, "depth_static": depth},
    }
