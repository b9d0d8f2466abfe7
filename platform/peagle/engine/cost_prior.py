"""Derives a deployment's step-time prior, and reports where a stand-in replaces unknown data.

Uses no network: of a repository, only files on this machine are read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle.config import Checkpoint, Deployment
from peagle.engine.checkpoint import Folder
from peagle.errors import ConfigError
from peagle.router.depth import (
    DEVICES,
    EMBEDDED_CPU,
    TARGETS,
    CostPrior,
    TargetSize,
    cpu_prior,
    known_target,
    roofline_prior,
    target_size,
)
from peagle.router.depth.model_size import TIMED_ANYWAY

CONFIG = "config.json"
STAND_IN_TARGET, STAND_IN_DEVICE, STAND_IN_CPU = "gpt-oss-20b", "B200", "the embedded model"
NAME_ONE = f"Write one of {', '.join(DEVICES)} if it is one of these."
TARGET_PART, DEVICE_PART = PARTS = ("target", "device")


@dataclass(frozen=True, slots=True)
class FoundPrior:
    """A prior of step times, and its source.

    Attributes:
        cost: The prior.
        basis: What it is derived from.
        stand_ins: Unknown parts, of `target` and `device`: the field, the stand-in, and the fix.
    """

    cost: CostPrior
    basis: str
    stand_ins: Mapping[str, ConfigError]

    @property
    def assumed(self) -> dict[str, int]:
        """1 for each part with a stand-in, as in the metric."""
        return {part: int(part in self.stand_ins) for part in PARTS}


def cost_prior(deployment: Deployment) -> FoundPrior:
    """Derive the prior of `deployment`; never fails, whatever is missing or invalid."""
    stand_ins: dict[str, ConfigError] = {}
    resources, size = deployment.resources, None
    try:
        size, of_target = _find_size(deployment)
    except ConfigError as error:
        taken = STAND_IN_CPU if resources.accelerator == "cpu" else STAND_IN_TARGET
        problem = f"{error.problem}, so {taken}'s size stands in"
        stand_ins[TARGET_PART] = ConfigError(error.field, error.value, problem, error.fix)
        of_target = f"the size of {taken}"
    if resources.accelerator == "cpu":
        cost = EMBEDDED_CPU if size is None else cpu_prior(size, max(1, int(resources.cpus)))
        return FoundPrior(cost, f"{of_target}, on a CPU", stand_ins)
    device = DEVICES.get(resources.accelerator_type or "")
    if device is None:
        kind = resources.accelerator_type
        why, fix = ("its speed is unknown", TIMED_ANYWAY) if kind else ("no GPU is named", NAME_ONE)
        problem = f"{why}, so a {STAND_IN_DEVICE}'s speed stands in"
        stand_ins[DEVICE_PART] = ConfigError("resources.accelerator_type", kind, problem, fix)
    name = resources.accelerator_type if device is not None else STAND_IN_DEVICE
    cost = roofline_prior(
        size or TARGETS[STAND_IN_TARGET], device or DEVICES[STAND_IN_DEVICE], resources.tensor_parallel_size
    )
    return FoundPrior(cost, f"{of_target}, on {name}", stand_ins)


def _find_size(deployment: Deployment) -> tuple[TargetSize, str]:
    """Return the target's size, and its source.

    Raises ConfigError if it is unknown; the error names the field and the reason.
    """
    target = deployment.target
    known = None if target.is_local else known_target(target.source)
    if known is not None:
        return known, f"the known size of {target.source}"
    folder = Folder(Path(target.source) if target.is_local else _cached(target), "target.source")
    config = folder.read_json(CONFIG)
    dtype, quantization = deployment.engine.get("dtype"), deployment.engine.get("quantization")
    try:
        size = target_size(
            config,
            dtype if isinstance(dtype, str) else None,
            quantization if isinstance(quantization, str) else None,
            on_gpu=deployment.resources.accelerator == "gpu",
        )
    except ConfigError as error:
        if error.field.startswith("engine."):
            raise
        raise folder.wrong(f"{CONFIG}: {error.field}", error.value, error.problem, error.fix) from None
    return size, f"the size in its {CONFIG}"


def _cached(target: Checkpoint) -> Path:
    """Return the folder in Hugging Face's cache with the repository's config.json.

    Raises ConfigError if it is not cached, or the library to read the cache is missing.
    """
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(target.source, CONFIG, revision=target.revision)
    except (ImportError, ValueError, OSError):
        found = None
    if not isinstance(found, str):
        problem = f"its size is unknown, and its {CONFIG} is not on this machine"
        raise ConfigError("target.source", target.source, problem, f"Name a folder that holds it. {TIMED_ANYWAY}")
    return Path(found).parent
