"""Record of the plan and data of a checkpoint, so that a run never continues with others."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.head_plan import HeadPlan
from peagle.drafter.train.training import CHECKPOINT
from peagle.engine.checkpoint import fingerprint
from peagle.errors import ConfigError

PLAN = "plan.json"
# Settings that change no gradient.
_FREE = {"partitions", "ngram_bias_nats"}
# Values before a plan had these settings.
_BEFORE = {"markov_rank": 0, "frozen": False}


def learned_from(
    target: Path, generated: GeneratedText, corpus: np.ndarray, mask_token: int | None
) -> dict[str, str | int | None]:
    """Return fingerprints of everything that a head is trained on; the same for the same content."""
    lengths = () if generated.lengths is None else (generated.lengths,)
    return {
        "target": fingerprint(target),
        "generated": _digest(generated.tokens, generated.prompt_tokens, *lengths),
        "corpus": _digest(corpus),
        "mask_token": mask_token,
    }


def check_record(out: Path, plan: HeadPlan, learned: dict[str, str | int | None]) -> None:
    """Check that the folder's checkpoint, if there is one, was trained with the same plan and data.

    Raises ConfigError if it belongs to another plan, other text or another target.
    """
    path = out / PLAN
    if not (path.exists() and (out / CHECKPOINT).exists()):
        return
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        problem = f"the record of the checkpoint cannot be read ({error})"
        raise ConfigError("out", str(path), problem, "Restore it from a copy, or train into another folder.") from None
    for name, value in _settings(plan).items():
        before = kept.get(name, _BEFORE.get(name))
        if before != value and name not in _FREE:
            problem = f"the checkpoint in {out} was trained with {before}"
            raise ConfigError(name, value, problem, "Write that, or train into another folder.")
    # Records of older versions lack this.
    for name, value in learned.items() if "learned_from" in kept else ():
        if kept["learned_from"].get(name) != value:
            problem = f"the checkpoint in {out} was trained with another"
            raise ConfigError(name, value, problem, "Name the one of its training, or train into another folder.")


def write_record(out: Path, plan: HeadPlan, learned: dict[str, str | int | None]) -> None:
    """Record the plan and data of the folder's checkpoint."""
    record = _settings(plan) | {"learned_from": learned}
    partial = out / f"{PLAN}.partial"  # so that a kill while writing does not lose the old record
    partial.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    partial.replace(out / PLAN)


def _settings(plan: HeadPlan) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(json.dumps(asdict(plan)))
    return settings


def _digest(*arrays: np.ndarray) -> str:
    known = hashlib.sha256()
    for array in arrays:
        known.update(f"{array.dtype} {array.shape}\n".encode())
        known.update(array.tobytes())
    return known.hexdigest()[:16]
