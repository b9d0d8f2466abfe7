"""Deployment files: one YAML per model, read here and nowhere else, into strict frozen models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from peagle.errors import ConfigError

# What the platform sets itself, and the field that sets it.
PLATFORM_OWNED_ARGUMENTS: Mapping[str, str] = {
    "model": "target.source",
    "revision": "target.revision",
    "served_model_name": "name",
    "speculative_config": "drafter and speculation",
    "scheduler_cls": "speculation.live_depth",
    "tensor_parallel_size": "resources.tensor_parallel_size",
    "disable_log_stats": "nothing: statistics are always on",
}

Depth = Annotated[int, Field(ge=0, le=64)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Checkpoint(_Strict):
    """Weights: a Hugging Face repository (`org/name`) or a folder, relative to the deployment file."""

    source: str = Field(min_length=1)
    revision: str | None = None

    @property
    def is_local(self) -> bool:
        """Whether `source` names a folder: it starts with `.`, `/` or `~`."""
        return self.source.startswith((".", "/", "~"))


class Drafter(Checkpoint):
    """A draft head. `trained_depth` is the deepest K that it was trained for."""

    method: Literal["p-eagle", "eagle3"] = "p-eagle"
    trained_depth: int = Field(ge=1, le=64)


class Speculation(_Strict):
    """How deep to draft. `depth_static` applies until something sets another K, and whenever nothing may."""

    enabled: bool = True
    live_depth: bool = True
    depth_max: int = Field(default=7, ge=1, le=64)
    depth_static: Depth = 7

    @model_validator(mode="after")
    def _static_within_max(self) -> Self:
        if self.depth_static > self.depth_max:
            raise ValueError(
                f"depth_static is {self.depth_static}, above depth_max {self.depth_max}; lower it or raise depth_max"
            )
        return self


class Replicas(_Strict):
    """Replica count; Ray Serve scales between the two where they differ."""

    min: int = Field(default=1, ge=1, le=4096)
    max: int = Field(default=1, ge=1, le=4096)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise ValueError(f"max is {self.max}, below min {self.min}; raise max or lower min")
        return self


class Resources(_Strict):
    """What one replica takes. `accelerator_type` is Ray's name for a GPU model, such as `B200`."""

    accelerator: Literal["cpu", "gpu"] = "gpu"
    accelerator_type: str | None = None
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    cpus: float = Field(default=1.0, gt=0, le=1024)

    @model_validator(mode="after")
    def _cpu_runs_one_rank(self) -> Self:
        if self.accelerator == "cpu" and self.tensor_parallel_size > 1:
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size} on a CPU; set it to 1 or accelerator to gpu"
            )
        return self


class Routing(_Strict):
    """Bounds on what one replica, and the queue before it, may hold."""

    max_ongoing_requests: int = Field(default=256, ge=1, le=100_000)
    max_queued_requests: int = Field(default=1024, ge=-1, le=1_000_000)


class Deployment(_Strict):
    """One model as it is served: what `deployments/*.yaml` holds."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")
    target: Checkpoint
    drafter: Drafter | None = None
    speculation: Speculation = Speculation()
    engine: dict[str, JsonValue] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    replicas: Replicas = Replicas()
    resources: Resources = Resources()
    routing: Routing = Routing()

    @field_validator("engine")
    @classmethod
    def _only_what_is_free(cls, engine: dict[str, Any]) -> dict[str, Any]:
        for key in engine:
            if key in PLATFORM_OWNED_ARGUMENTS:
                raise ValueError(f"{key} is set by {PLATFORM_OWNED_ARGUMENTS[key]}; remove it here")
            if not key.isidentifier():
                raise ValueError(f"{key} is no engine argument; write vLLM's flags with underscores, such as dtype")
        return engine

    @model_validator(mode="after")
    def _depth_within_training(self) -> Self:
        if not self.speculates:
            return self
        if self.drafter is None:
            raise ValueError("speculation.enabled is true but there is no drafter; add one or set it to false")
        if self.speculation.depth_max > self.drafter.trained_depth:
            raise ValueError(
                f"speculation.depth_max is {self.speculation.depth_max}, above drafter.trained_depth "
                f"{self.drafter.trained_depth}; lower depth_max to {self.drafter.trained_depth}"
            )
        return self

    @property
    def speculates(self) -> bool:
        return self.speculation.enabled


def load_deployment(path: Path) -> Deployment:
    """Read one deployment file; local checkpoints in it become absolute paths.

    Raises:
        ConfigError: The file is missing, is not YAML, or a field is wrong; the message names all of it.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError("file", str(path), "there is no such file", "Name a file of deployments/.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("file", str(path), f"it is not YAML ({error})", "Mend its syntax.") from None
    except OSError as error:
        raise ConfigError("file", str(path), f"it cannot be read ({error.strerror})", "Name a readable file.") from None
    if not isinstance(raw, dict):
        raise ConfigError("file", str(path), "it holds no mapping", "Start from a file of deployments/.")
    return parse_deployment(raw, origin=str(path), base=path.parent)


def parse_deployment(raw: Mapping[str, Any], origin: str, base: Path | None = None) -> Deployment:
    """Validate a deployment given as plain values; `base` is what its relative paths start from.

    Raises:
        ConfigError: A field is wrong; `origin` leads its path.
    """
    try:
        deployment = Deployment.model_validate(dict(raw))
    except ValidationError as error:
        raise _first_problem(error, origin) from None
    if base is None:
        return deployment
    changes: dict[str, Checkpoint] = {}
    for field in ("target", "drafter"):
        checkpoint: Checkpoint | None = getattr(deployment, field)
        if checkpoint is not None and checkpoint.is_local:
            folder = (base / Path(checkpoint.source).expanduser()).resolve()
            changes[field] = checkpoint.model_copy(update={"source": str(folder)})
    return deployment.model_copy(update=changes)


def _first_problem(error: ValidationError, origin: str) -> ConfigError:
    problems = error.errors()
    first = problems[0]
    place = ".".join(str(part) for part in first["loc"])
    field = f"{origin}: {place}" if place else origin
    message = first["msg"].removeprefix("Value error, ")
    more = f" ({len(problems) - 1} more after this one)" if len(problems) > 1 else ""
    value = first["input"] if not isinstance(first["input"], dict) else "…"
    match first["type"]:
        case "missing":
            return ConfigError(field, None, "it is required", f"Add it.{more}")
        case "extra_forbidden":
            known = ", ".join(Deployment.model_fields) if "." not in place else "the fields the README lists"
            return ConfigError(field, value, "there is no such field", f"Remove it; known here: {known}.{more}")
        case "value_error":
            problem, _, fix = message.partition("; ")
            return ConfigError(field, value, problem, f"{fix[:1].upper()}{fix[1:]}.{more}")
        case _:
            return ConfigError(field, value, message[:1].lower() + message[1:], f"Correct that field.{more}")
