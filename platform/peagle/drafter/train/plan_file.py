"""Plan files of `peagle drafter train`: target, text, head and schedule, one YAML file for each head."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from peagle.config.schema import Strict, parse, wrong
from peagle.config.yaml_file import read_mapping
from peagle.drafter.data.repository import local_target
from peagle.drafter.train.compute import DeviceName
from peagle.drafter.train.head_plan import HEAD_PLANS, HEAD_RATES, HeadPlan
from peagle.drafter.train.training import CHECKPOINT, Rates
from peagle.engine.checkpoint import NGRAM_BIAS_NATS_MAX
from peagle.errors import ConfigError

STANDARD_LIBRARY = "standard-library"

Name = Annotated[str, Field(min_length=1, max_length=1024)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Steps = Annotated[int, Field(ge=1, le=100_000_000)]

_THERE = "Name an existing {}, relative to the plan file."
# Except for the head, both methods have the same defaults.
_OWN = HEAD_PLANS["p-eagle"]


class Head(Strict):
    """The head to train.

    By default `layers` is 4 for p-eagle, 1 for eagle3; `tapped_layers` an early, a middle and a late layer;
    `trained_depth` 8 for p-eagle, 7 for eagle3; `markov_rank` 128 for p-eagle (0 for no Markov head) and
    `ngram_bias_nats` 0.85. `start` is the folder of a head from whose weights to continue; with `frozen` only its
    Markov head and its output matrix are trained.
    """

    method: Literal["p-eagle", "eagle3"] = "p-eagle"
    start: Name | None = None
    layers: int | None = Field(default=None, ge=1, le=16)
    trained_depth: int | None = Field(default=None, ge=1, le=64)
    tapped_layers: list[int] | None = None
    mask_token: Name = "<|mask|>"
    markov_rank: int | None = Field(default=None, ge=0, le=4096)
    ngram_bias_nats: float | None = Field(default=None, ge=0, le=NGRAM_BIAS_NATS_MAX)
    frozen: bool = False

    @model_validator(mode="after")
    def _only_p_eagle_has_a_markov_head(self) -> Self:
        if self.method == "eagle3" and self.markov_rank:
            problem = "eagle3 drafts token by token and needs no Markov head"
            raise wrong("markov_rank", self.markov_rank, problem, "Remove it, or write method: p-eagle.")
        if self.ngram_bias_nats and (self.method == "eagle3" or self.markov_rank == 0):
            problem = "n-grams only affect drafts of a head with a Markov head"
            raise wrong("ngram_bias_nats", self.ngram_bias_nats, problem, "Remove it, or set markov_rank for p-eagle.")
        return self

    @model_validator(mode="after")
    def _only_a_trained_head_is_frozen(self) -> Self:
        if self.frozen and (self.start is None or self.method == "eagle3" or self.markov_rank == 0):
            problem = "it trains only the Markov head of a P-EAGLE head that is already trained"
            raise wrong("frozen", True, problem, "Name the head as start, or write false.")
        return self


class Text(Strict):
    """Training text: rows of `peagle drafter generate`, and a share of text that the target did not write.

    `corpus` is `standard-library`, that of this Python, or the path of a UTF-8 text file.
    """

    generated: Name
    generated_ratio: Ratio = _OWN.generated_ratio
    corpus: Name | None = STANDARD_LIBRARY

    @model_validator(mode="after")
    def _corpus_for_its_share(self) -> Self:
        if self.corpus is None and self.generated_ratio < 1:
            fix = "Write generated_ratio: 1.0, or name a corpus."
            raise wrong("generated_ratio", self.generated_ratio, "there is no corpus for the rest", fix)
        return self


class LearningRates(Strict):
    """Learning rates, see `training.Rates`; `matrix` is for hidden matrices (Muon)."""

    matrix: Rate = HEAD_RATES.matrix
    other: Rate = HEAD_RATES.other
    warmup_steps: Steps = HEAD_RATES.warmup_steps
    decay_steps: Steps = HEAD_RATES.decay_steps
    weight_decay: Ratio = HEAD_RATES.weight_decay


class Training(Strict):
    """Schedule, see HeadPlan, and device; `auto` uses a GPU if there is one.

    `threads` 0 is PyTorch's default, which `torchrun` sets to one for each process.
    """

    steps: Steps = _OWN.steps
    tokens_per_step: int = Field(default=_OWN.tokens_per_step, ge=1, le=1_000_000)
    crop_tokens: int = Field(default=_OWN.crop_tokens, ge=16, le=1_000_000)
    whole_row_every: Steps = _OWN.whole_row_every
    depth_ratio: float = Field(default=_OWN.depth_ratio, gt=0, le=1)
    depth_ratio_min: float = Field(default=_OWN.depth_ratio_min, gt=0, le=1)
    confidence_floor: float | None = Field(default=_OWN.confidence_floor, gt=0, le=1)
    partitions: int = Field(default=_OWN.partitions, ge=1, le=4096)
    rates: LearningRates = LearningRates()
    checkpoint_every_steps: Steps = 100
    device: DeviceName = "auto"
    threads: int = Field(default=0, ge=0, le=1024)
    seed: int = Field(default=_OWN.seed, ge=0, le=1_000_000)


class TrainingFile(Strict):
    """Training of one head; paths are relative to the file. `target` may be a repository, `org/name[@revision]`."""

    target: Name
    out: Name
    text: Text
    head: Head = Head()
    training: Training = Training()

    @model_validator(mode="after")
    def _only_p_eagle_is_partitioned(self) -> Self:
        if self.head.method == "eagle3" and self.training.partitions > 1:
            problem = "eagle3 passes over one depth after the other and is not partitioned"
            raise wrong("training.partitions", self.training.partitions, problem, "Write 1, or method: p-eagle.")
        return self

    @property
    def plan(self) -> HeadPlan:
        """The trainer's plan; unset fields have the method's defaults."""
        own, schedule, rates = HEAD_PLANS[self.head.method], self.training, self.training.rates
        return HeadPlan(
            method=self.head.method,
            layers=self.head.layers or own.layers,
            trained_depth=self.head.trained_depth or own.trained_depth,
            markov_rank=own.markov_rank if self.head.markov_rank is None else self.head.markov_rank,
            ngram_bias_nats=own.ngram_bias_nats if self.head.ngram_bias_nats is None else self.head.ngram_bias_nats,
            start=self.head.start,
            frozen=self.head.frozen,
            tapped_layers=None if self.head.tapped_layers is None else tuple(self.head.tapped_layers),
            depth_ratio=schedule.depth_ratio,
            depth_ratio_min=schedule.depth_ratio_min,
            confidence_floor=schedule.confidence_floor,
            generated_ratio=self.text.generated_ratio,
            tokens_per_step=schedule.tokens_per_step,
            crop_tokens=schedule.crop_tokens,
            whole_row_every=schedule.whole_row_every,
            partitions=schedule.partitions,
            steps=schedule.steps,
            rates=Rates(rates.matrix, rates.other, rates.warmup_steps, rates.decay_steps, rates.weight_decay),
            seed=schedule.seed,
        )


def load_training(path: Path) -> TrainingFile:
    """Read a plan file; paths become absolute, and a repository becomes the folder of its download.

    Raises ConfigError if the file is missing, is not YAML, or has invalid fields, all of which are named; if a named
    target, rows, corpus or start head is missing, or the target cannot be downloaded.
    """
    file = parse(TrainingFile, read_mapping(path, "deployments/embedded/"), str(path), "a training plan")
    corpus = file.text.corpus
    if corpus is not None and corpus != STANDARD_LIBRARY:
        corpus = _there(path, "text.corpus", corpus)
    text = file.text.model_copy(
        update={"generated": _there(path, "text.generated", file.text.generated), "corpus": corpus}
    )
    out = _place(path, "out", file.out)
    head = file.head
    if head.start is not None:
        # A run that has begun continues without it.
        find = _place if (out / CHECKPOINT).exists() else _folder
        head = head.model_copy(update={"start": str(find(path, "head.start", head.start))})
    target = str(local_target(file.target, f"{path}: target", path.parent))
    return file.model_copy(update={"target": target, "out": str(out), "text": text, "head": head})


def _there(origin: Path, field: str, name: str) -> str:
    place = _place(origin, field, name)
    if not place.is_file():
        raise ConfigError(f"{origin}: {field}", name, "there is no such file", _THERE.format("file"))
    return str(place)


def _folder(origin: Path, field: str, name: str) -> Path:
    place = _place(origin, field, name)
    if not place.is_dir():
        raise ConfigError(f"{origin}: {field}", name, "there is no such folder", _THERE.format("folder"))
    return place


def _place(origin: Path, field: str, name: str) -> Path:
    try:
        return (origin.parent / Path(name).expanduser()).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{origin}: {field}", name, f"it is not a path ({error})", "Name another.") from None
