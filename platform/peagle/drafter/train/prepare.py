"""Reads and checks the inputs of a head's training, before its long part."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from peagle.drafter.data.corpus import END_OF_TEXT, MASK, read_tokenizer, standard_library, token_stream
from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.compute import ALONE, Compute, DeviceName, target_dtype
from peagle.drafter.train.export import TRAINING_ONLY
from peagle.drafter.train.head_plan import HeadPlan, tapped_layers_of
from peagle.drafter.train.heads import train_head
from peagle.drafter.train.plan_file import STANDARD_LIBRARY, TrainingFile
from peagle.drafter.train.pretrained import load_head, read_size
from peagle.drafter.train.readiness import TargetShape, check_training
from peagle.drafter.train.training import CHECKPOINT, Progress
from peagle.engine.checkpoint import Folder
from peagle.errors import CombinedConfigError, ConfigError


@dataclass(frozen=True, slots=True)
class Job:
    """A requested training. `corpus` is `standard-library`, a UTF-8 text file, or None."""

    target: Path
    generated: Path
    out: Path
    plan: HeadPlan
    corpus: str | None = STANDARD_LIBRARY
    mask_token: str = MASK
    checkpoint_every_steps: int = 100
    device: DeviceName = "auto"

    @classmethod
    def of(cls, file: TrainingFile) -> "Job":
        return cls(
            target=Path(file.target),
            generated=Path(file.text.generated),
            out=Path(file.out),
            plan=file.plan,
            corpus=file.text.corpus,
            mask_token=file.head.mask_token,
            checkpoint_every_steps=file.training.checkpoint_every_steps,
            device=file.training.device,
        )


@dataclass(frozen=True, slots=True)
class Material:
    """Inputs of a job: rows, the corpus as one stream (int, [tokens]), and the mask token's id.

    `start` are weights to start from; None without any, or if a checkpoint has later ones.
    """

    text: GeneratedText
    corpus: np.ndarray
    mask_token: int | None
    start: Mapping[str, torch.Tensor] | None


def train_job(job: Job, material: Material, report: Callable[[Progress], None], compute: Compute = ALONE) -> None:
    """Train the head of `job` on what `prepare` returned; see `train_head`."""
    train_head(
        job.target,
        material.text,
        material.corpus,
        material.mask_token,
        job.out,
        job.plan,
        report,
        job.checkpoint_every_steps,
        material.start,
        compute,
    )


def prepare(job: Job, compute: Compute = ALONE) -> Material:
    """Read everything that `job` names, and check that its training can work with this compute.

    Raises ConfigError if it cannot; names all problems.
    """
    if job.out.resolve() == job.target.resolve():
        problem = "the head would overwrite the target"
        raise ConfigError("out", str(job.out), problem, "Train into another folder.")
    folder = Folder(job.target, "target")
    tokenizer = read_tokenizer(job.target)
    text = GeneratedText.load(job.generated)
    corpus, mask_token = _corpus(job.corpus, tokenizer), tokenizer.token_to_id(job.mask_token)
    shape = target_shape(folder, tokenizer, target_dtype(compute.device))
    check_training(job.plan, shape, text, corpus, mask_token, compute.memory_bytes, compute.processes)
    return Material(text, corpus, mask_token, _weights(job, shape.layers, mask_token))


def _weights(job: Job, target_layers: int, mask_token: int | None) -> Mapping[str, torch.Tensor] | None:
    """Load the weights of the head to start from; None without one, or if a checkpoint has later ones.

    Raises ConfigError if the head is missing or differs from the plan, or if this training would overwrite it.
    """
    plan = job.plan
    if plan.start is None:
        return None
    start = Path(plan.start)
    if start.resolve() == job.out.resolve():
        problem = "training would overwrite the head that it starts from"
        raise ConfigError("head.start", plan.start, problem, "Train into another folder.")
    if (job.out / CHECKPOINT).exists():
        return None
    head, known = load_head(job.target, start, "head.start")
    taps = plan.tapped_layers or tapped_layers_of(target_layers)
    shaped = {
        "method": (known.method, plan.method),
        "layers": (known.layers, plan.layers),
        "trained_depth": (known.trained_depth, plan.trained_depth),
        # A head without a Markov head gets one.
        "markov_rank": (known.markov_rank or plan.markov_rank, plan.markov_rank),
        "tapped_layers": (known.tapped_layers, taps),
        "mask_token": (getattr(head, "mask_token_id", mask_token), mask_token),
    }
    problems = [
        ConfigError(
            f"head.{name}", wanted, f"the head in {start} has {has}", "Write that value, or train without head.start."
        )
        for name, (has, wanted) in shaped.items()
        if has != wanted
    ]
    if problems:
        raise CombinedConfigError.of(problems)
    return {name: value for name, value in head.state_dict().items() if not name.startswith(TRAINING_ONLY)}


def target_shape(folder: Folder, tokenizer: Tokenizer, dtype: torch.dtype = torch.float32) -> TargetShape:
    """Read a target's properties from `config.json` and the weights' headers, for weights held in `dtype`.

    Raises ConfigError if a size or the weights are missing.
    """
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
    sizes = {key: read_size(folder, key) for key in keys}
    tensors = folder.read_tensors() or {}
    return TargetShape(
        layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        mlp_size=sizes["intermediate_size"],
        vocab_size=sizes["vocab_size"],
        weights_bytes=dtype.itemsize * sum(tensor.elements for tensor in tensors.values()),
        context_tokens=sizes["max_position_embeddings"],
        tokenizer_tokens=tokenizer.get_vocab_size(),
    )


def _corpus(name: str | None, tokenizer: Tokenizer) -> np.ndarray:
    if name is None:
        return np.zeros(0, dtype=np.int32)
    if name == STANDARD_LIBRARY:
        if tokenizer.token_to_id(END_OF_TEXT) is None:
            fix = "Name a file of UTF-8 text as text.corpus instead."
            raise ConfigError("text.corpus", name, f"the target's tokenizer has no {END_OF_TEXT} to end its files", fix)
        return token_stream(tokenizer, standard_library().train)
    try:
        text = Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("text.corpus", name, f"byte {error.start} is not UTF-8", "Save it as UTF-8.") from None
    return np.asarray(tokenizer.encode(text).ids, dtype=np.int32)
