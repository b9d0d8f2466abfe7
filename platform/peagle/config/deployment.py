"""Deployment files: one YAML per model, read here and nowhere else, into strict frozen models."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from peagle.config.schema import Strict, parse, wrong
from peagle.config.yaml_file import read_mapping
from peagle.errors import ConfigError
from peagle.router.dispatch import POLICIES, SOONEST

# What the platform sets itself, and the field that sets it.
PLATFORM_OWNED_ARGUMENTS: Mapping[str, str] = {
    "model": "target.source",
    "revision": "target.revision",
    "served_model_name": "name",
    "speculative_config": "drafter and speculation",
    "spec_method": "drafter.method",
    "spec_model": "drafter.source",
    "spec_tokens": "speculation.depth_max",
    "scheduler_cls": "speculation.live_depth",
    "worker_extension_cls": "nothing: the platform needs its own",
    "tensor_parallel_size": "resources.tensor_parallel_size",
    "data_parallel_size": "replicas.min and replicas.max",
    "disable_log_stats": "nothing: statistics are always on",
}

# What vLLM has and no route or replica here could use: an argument, and why.
REFUSED_ARGUMENTS: Mapping[str, str] = {
    "enable_lora": "adapters are not served: a drafter is trained for its target's own weights",
    "enable_sleep_mode": "nothing here wakes an engine that sleeps",
    "tool_server": "no replica runs tools; clients do",
}
# The same of variables.
REFUSED_VARIABLES: Mapping[str, str] = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": REFUSED_ARGUMENTS["enable_lora"],
    "VLLM_ENABLE_RESPONSES_API_STORE": "a replica would keep every answer for ever, and the others would not find it",
}

# Hugging Face's own rule: an organisation (older repositories have none) and a name.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

POWER_OF_TWO = "power-of-two"
ROUTING_POLICIES: Mapping[str, str] = {
    **{name: policy.description for name, policy in POLICIES.items()},
    POWER_OF_TWO: "Ray Serve's own choice, the less busy of two picked at random",
}
"""What each policy takes, by name: those of the platform, and Ray Serve's own."""

POOLING = "pooling"
# How vLLM makes an embedding or scoring model of one that generates.
POOLING_CONVERSIONS = ("embed", "classify")

STRUCTURED_OUTPUTS = "structured_outputs_config"
GRAMMAR_BACKENDS = ("xgrammar", "guidance")
"""vLLM's backends whose compilation is bounded, here or by themselves; the first is the default."""

Depth = Annotated[int, Field(ge=0, le=64)]


class Checkpoint(Strict):
    """Weights: a Hugging Face repository (`org/name`) or a folder, relative to the deployment file."""

    source: str = Field(min_length=1, max_length=1024)
    """Hugging Face repository (`org/name`), or a folder that starts with `.`, `/` or `~`."""
    revision: str | None = Field(default=None, min_length=1, max_length=256)
    """Branch, tag or commit of the repository; not for a folder."""

    @property
    def is_local(self) -> bool:
        """Whether `source` names a folder: it starts with `.`, `/` or `~`."""
        return self.source.startswith((".", "/", "~"))

    @model_validator(mode="after")
    def _folder_or_repository(self) -> Self:
        if not self.source.isprintable():
            raise wrong("source", self.source, "it holds a control character", "Write it without.")
        if self.is_local and self.revision is not None:
            raise wrong("revision", self.revision, "a folder has no revision", "Remove it.")
        if not self.is_local and not _REPOSITORY.fullmatch(self.source):
            fix = f"Write org/name, or ./{self.source.lstrip('/')} for a folder."
            raise wrong("source", self.source, "it is neither a repository nor the path of a folder", fix)
        return self


class Drafter(Checkpoint):
    """A draft head."""

    method: Literal["p-eagle", "eagle3"] = "p-eagle"
    """How it drafts: all tokens in one pass (`p-eagle`), or one pass for each token (`eagle3`)."""
    trained_depth: int = Field(ge=1, le=64)
    """Deepest K that the head was trained for."""


class Speculation(Strict):
    """How deep to draft."""

    enabled: bool = True
    """False serves the model without speculation; no drafter is needed then."""
    live_depth: bool = True
    """Whether K may change while the engine runs."""
    adaptive: bool | None = None
    """Whether the Router chooses K for each replica and batch size. Default: true for P-EAGLE with `live_depth`."""
    by_request: bool | None = None
    """Whether K is an average, and a step's drafts go to its likeliest positions. Default: only on a CPU."""
    depth_max: int = Field(default=7, ge=1, le=64)
    """Deepest K drafted; at most `drafter.trained_depth`."""
    depth_static: Depth = 7
    """K that applies until something sets another, and whenever nothing may; at most `depth_max`."""
    inter_token_s_max: float | None = Field(default=None, gt=0.0, le=60.0)
    """Seconds between tokens. A K whose predicted step takes longer is not chosen if another K keeps the bound."""
    calibration_s: float = Field(default=25.0, ge=0.0, le=600.0)
    """Most seconds for timing steps at each batch size and K before the first request; 0: learned while serving."""
    graph_s_max: float = Field(default=30.0, ge=0.0, le=3600.0)
    """GPU: most seconds of the start for capturing full CUDA graphs of each K; 0 leaves vLLM's own graphs."""
    graph_gib_max: float = Field(default=6.0, ge=0.0, le=1024.0)
    """GPU: most memory for these graphs, in GiB; 0 leaves vLLM's own graphs."""

    @model_validator(mode="after")
    def _static_within_max(self) -> Self:
        if self.depth_static > self.depth_max:
            problem = f"it is above depth_max, which is {self.depth_max}"
            raise wrong("depth_static", self.depth_static, problem, f"Lower it to {self.depth_max} or raise depth_max.")
        if self.adaptive and not self.live_depth:
            raise wrong("adaptive", True, "live_depth is off", "Write live_depth: true, or adaptive: false.")
        return self


class Replicas(Strict):
    """How many replicas run, and when a replica that hangs is replaced."""

    min: int = Field(default=1, ge=1, le=4096)
    """Least number of replicas."""
    max: int = Field(default=1, ge=1, le=4096)
    """Greatest number of replicas; where it is above `min`, Ray Serve scales between the two."""
    hung_after_s: float = Field(default=30.0, ge=5.0, le=3600.0)
    """Seconds without a sign of life until an engine's replica is replaced. Raise it where kernels compile late."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.min:
            raise wrong("max", self.max, f"it is below min, which is {self.min}", f"Write {self.min} or more.")
        return self


# GPUs, by the names that Ray's LLM library takes.
ACCELERATOR_TYPES = (
    *("V100", "P100", "T4", "P4", "K80", "A10", "A10G", "L4", "L40S", "A100", "A100-40G", "A100-80G"),
    *("H100", "H200", "H20", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000"),
    *("AMD-Instinct-MI100", "AMD-Instinct-MI250X", "AMD-Instinct-MI250X-MI250", "AMD-Instinct-MI210"),
    *("AMD-Instinct-MI300A", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI300X-HF", "AMD-Instinct-MI308X"),
    *("AMD-Instinct-MI325X-OAM", "AMD-Instinct-MI350X-OAM", "AMD-Instinct-MI355X-OAM"),
    *("Intel-GPU-Max-1550", "Intel-GPU-Max-1100", "MXC500", "MXC550"),
)


class Resources(Strict):
    """What one replica takes."""

    accelerator: Literal["cpu", "gpu"] = "gpu"
    """What the model is computed on."""
    accelerator_type: str | None = Field(default=None, min_length=1, max_length=64)
    """Ray's name for a GPU model, such as `B200`; without it any GPU will do."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """GPUs that share one replica's weights; 1 on a CPU."""
    cpus: float = Field(default=1.0, gt=0, le=1024)
    """CPU cores that Ray reserves for one replica; on a CPU also the cores that it computes on."""

    @field_validator("accelerator_type")
    @classmethod
    def _known_to_ray(cls, value: str | None) -> str | None:
        if value is None or value in ACCELERATOR_TYPES:
            return value
        near = {name.lower(): name for name in ACCELERATOR_TYPES}.get(value.strip().lower())
        fix = f"Write {near}." if near else "Write one such as H100 or B200."
        raise wrong("", value, "Ray knows no such GPU", f"{fix} Without it any GPU will do.")

    @model_validator(mode="after")
    def _cpu_needs_no_gpu(self) -> Self:
        if self.accelerator == "cpu" and self.tensor_parallel_size > 1:
            size = self.tensor_parallel_size
            raise wrong("tensor_parallel_size", size, "accelerator is cpu", "Write 1, or accelerator: gpu.")
        if self.accelerator == "cpu" and self.accelerator_type is not None:
            kind = self.accelerator_type
            raise wrong("accelerator_type", kind, "accelerator is cpu", "Remove it, or write accelerator: gpu.")
        return self


class Routing(Strict):
    """How a request finds its replica, and how many requests may wait for it."""

    policy: str = Field(
        default=SOONEST.name, description="\n".join(f"`{name}`: {text}." for name, text in ROUTING_POLICIES.items())
    )
    max_ongoing_requests: int = Field(default=256, ge=1, le=100_000)
    """Most requests that one replica holds."""
    max_queued_requests: int = Field(default=1024, ge=-1, le=1_000_000)
    """Most requests that wait for a replica; more are refused with 429. -1: no bound; 0 is refused."""
    step_tokens_shared: int | None = Field(default=None, ge=1, le=1_000_000)
    """Tokens that a step computes while several API keys share it. Fewer: shorter waits, fewer tokens/s in all.
    Default: 96 on a CPU, 1,024 on a GPU.
    """

    @field_validator("policy")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ROUTING_POLICIES:
            raise wrong("", value, "there is no such policy", f"Known: {', '.join(ROUTING_POLICIES)}.")
        return value

    @field_validator("max_queued_requests")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if value == 0:
            raise wrong("", value, "Ray Serve takes no queue of 0", "Write 1 or more, or -1 for no bound.")
        return value


class Deployment(Strict):
    """One model as it is served: what `deployments/*.yaml` holds."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")
    """Name by which clients ask for the model."""
    target: Checkpoint
    """The model that is served."""
    drafter: Drafter | None = None
    """The draft head; required while `speculation.enabled` is true."""
    speculation: Speculation = Speculation()
    engine: dict[str, JsonValue] = Field(default_factory=dict)
    """vLLM's own engine arguments, with underscores, without those that other fields set."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of a replica's processes."""
    replicas: Replicas = Replicas()
    resources: Resources = Resources()
    routing: Routing = Routing()

    @field_validator("engine")
    @classmethod
    def _only_what_is_free(cls, engine: dict[str, Any]) -> dict[str, Any]:
        for key, value in engine.items():
            if key in PLATFORM_OWNED_ARGUMENTS:
                raise wrong(key, value, f"it is set by {PLATFORM_OWNED_ARGUMENTS[key]}", "Remove it here.")
            if key in REFUSED_ARGUMENTS and value:
                raise wrong(key, value, REFUSED_ARGUMENTS[key], "Remove it.")
            if not key.isidentifier() or key.startswith("_"):
                name = key.lstrip("-_").replace("-", "_")
                raise wrong(key, value, "it is not an engine argument", f"Write it as vLLM names it in Python: {name}.")
        return engine

    @field_validator("environment")
    @classmethod
    def _settable(cls, environment: dict[str, str]) -> dict[str, str]:
        for name, value in environment.items():
            if not VARIABLE_NAME.fullmatch(name):
                raise wrong(name, None, "it is not a variable name", "Use letters, digits and underscores.")
            if "\0" in value:
                raise wrong(name, None, "its value holds a NUL character", "Write it without.")
            if name in REFUSED_VARIABLES and value not in ("", "0"):
                raise wrong(name, None, REFUSED_VARIABLES[name], "Remove it.")
        return environment

    @field_validator("engine")
    @classmethod
    def _compiles_within_bounds(cls, engine: dict[str, Any]) -> dict[str, Any]:
        config = engine.get(STRUCTURED_OUTPUTS, {})
        if not isinstance(config, dict):
            raise wrong(STRUCTURED_OUTPUTS, config, "it is not a mapping", "Write fields such as backend: xgrammar.")
        backend = config.get("backend", GRAMMAR_BACKENDS[0])
        if backend not in GRAMMAR_BACKENDS:
            is_auto = backend == "auto"
            problem = "the first request would choose for all" if is_auto else "nothing bounds what its grammars take"
            raise wrong(f"{STRUCTURED_OUTPUTS}.backend", backend, problem, f"Write {' or '.join(GRAMMAR_BACKENDS)}.")
        return engine

    @model_validator(mode="after")
    def _pooling_drafts_nothing(self) -> Self:
        if not self.pools:
            if self.engine.get("convert") in POOLING_CONVERSIONS:
                problem = "it is of a model that embeds or scores text"
                raise wrong(
                    "engine.convert", self.engine["convert"], problem, "Write engine.runner: pooling beside it."
                )
            return self
        problem = "a model that embeds or scores text generates none to be drafted (engine.runner is pooling)"
        if self.drafter is not None:
            raise wrong("drafter", self.drafter.source, problem, "Remove drafter, or engine.runner.")
        if "speculation" in self.model_fields_set and self.speculation.enabled:
            raise wrong("speculation.enabled", True, problem, "Remove speculation, or engine.runner.")
        return self

    @model_validator(mode="after")
    def _depth_within_training(self) -> Self:
        if not self.speculates:
            return self
        if self.drafter is None:
            fix = "Add a drafter, or write speculation: {enabled: false}."
            raise wrong("drafter", None, "it is required while speculation.enabled is true", fix)
        depth, trained = self.speculation.depth_max, self.drafter.trained_depth
        if depth > trained:
            problem = f"it is above drafter.trained_depth, which is {trained}"
            raise wrong("speculation.depth_max", depth, problem, f"Lower it to {trained}.")
        return self

    @model_validator(mode="after")
    def _target_is_adapted_to(self) -> Self:
        wanted = self.speculation.inter_token_s_max
        if self.speculates and wanted is not None and not self.adapts:
            fix = "Write adaptive: true." if self.speculation.live_depth else "Write live_depth: true."
            raise wrong("speculation.inter_token_s_max", wanted, "nothing adapts to it", fix)
        if self.speculation.by_request and self.speculates and not self.adapts:
            raise wrong("speculation.by_request", True, "no K is chosen to be shared out", "Write adaptive: true.")
        return self

    @model_validator(mode="after")
    def _cpu_has_one_stage(self) -> Self:
        if self.resources.accelerator == "cpu" and self.pipeline_parallel_size > 1:
            problem = "accelerator is cpu, and there vLLM's second stage fails at the first request"
            fix = "Write 1, or resources.accelerator: gpu."
            raise wrong("engine.pipeline_parallel_size", self.pipeline_parallel_size, problem, fix)
        return self

    @property
    def pools(self) -> bool:
        """Whether the model embeds or scores text, which vLLM calls pooling, and generates none."""
        return self.engine.get("runner") == POOLING

    @property
    def speculates(self) -> bool:
        return self.speculation.enabled and not self.pools

    @property
    def adapts(self) -> bool:
        """Whether the Router chooses its depths: where the file does not say, those of a P-EAGLE drafter."""
        if self.drafter is None or not self.speculates or not self.speculation.live_depth:
            return False
        # Other drafters take one pass for each position, and would pay for the passes that a lower K throws away.
        asked = self.speculation.adaptive
        return self.drafter.method == "p-eagle" if asked is None else asked

    @property
    def shares_drafts(self) -> bool:
        """Whether a step's drafts are shared out among its requests: where the file does not say, on a CPU."""
        asked = self.speculation.by_request
        return self.adapts and (self.resources.accelerator == "cpu" if asked is None else asked)

    @property
    def pipeline_parallel_size(self) -> int:
        """Stages of a replica, each on `resources.tensor_parallel_size` accelerators of one node."""
        size = self.engine.get("pipeline_parallel_size", 1)
        return size if isinstance(size, int) else 1  # vLLM's own check refuses other values

    @property
    def devices(self) -> int:
        """Accelerators of one replica; the CPUs of one without are one."""
        return self.resources.tensor_parallel_size * self.pipeline_parallel_size


def load_deployment(path: Path) -> Deployment:
    """Read one deployment file; local checkpoints in it become absolute paths.

    Raises ConfigError where the file is missing, is not YAML, or a field is wrong; all wrong fields are named.
    """
    return parse_deployment(read_mapping(path), origin=str(path), base=path.parent)


def parse_deployment(raw: Mapping[str, Any], origin: str, base: Path | None = None) -> Deployment:
    """Validate a deployment given as plain values; `base` is what its relative paths start from.

    Raises ConfigError where a field is wrong; all wrong fields are named, and `origin` leads each path.
    """
    # Below an engine argument pydantic names the kinds of value that it tried; an environment variable may be a secret.
    deployment = parse(Deployment, raw, origin, "a deployment", opaque=("engine",), secret=("environment",))
    changes: dict[str, Checkpoint] = {}
    for field in ("target", "drafter"):
        checkpoint: Checkpoint | None = getattr(deployment, field)
        if base is not None and checkpoint is not None and checkpoint.is_local:
            try:
                folder = (base / Path(checkpoint.source).expanduser()).resolve()
            except (OSError, RuntimeError) as error:
                place = f"{origin}: {field}.source"
                raise ConfigError(place, checkpoint.source, f"it is not a path ({error})", "Name a folder.") from None
            changes[field] = checkpoint.model_copy(update={"source": str(folder)})
    return deployment.model_copy(update=changes)
