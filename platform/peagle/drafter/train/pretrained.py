"""Reads a head trained here, to evaluate it or to continue from its weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor
from transformers import AutoConfig

from peagle.drafter.train.export import MARKOV, TRAINING_ONLY
from peagle.drafter.train.head_plan import HEAD_PLANS, OUT_OF_ORDER, TARGET_TYPES, HeadPlan
from peagle.drafter.train.heads import make_head
from peagle.engine.checkpoint import MARKOV_FOLDER, MARKOV_RANK_KEY, TAPS_KEY, Folder, read_ngram_bias

_REMEDY = "Name a head that `peagle drafter train` wrote for this target."


def load_head(target: Path, folder: Path, field: str = "HEAD") -> tuple[Eagle3DraftModel, HeadPlan]:
    """Load a head written by `peagle drafter train`, as trained, and the part of its plan in the checkpoint.

    Raises ConfigError, which names `folder` as `field`, if it is not such a head, or belongs to another target.
    """
    plan = read_plan(folder, field)
    files = Folder(folder, field, _REMEDY)
    mask_token = files.read_json("config.json").get("ptd_token_id")
    layers = read_size(Folder(target, "target"), "num_hidden_layers")
    taps = list(plan.tapped_layers or ())
    if min(taps) < 0 or max(taps) >= layers:
        problem = f"the target's layers go from 0 to {layers - 1}"
        raise files.wrong(f"config.json: {TAPS_KEY}", taps, problem, _REMEDY)
    if taps != sorted(taps):
        raise files.wrong(f"config.json: {TAPS_KEY}", taps, OUT_OF_ORDER, "Train it again; vLLM cannot serve it.")
    head = make_head(target, AutoConfig.from_pretrained(target), mask_token, plan, plan.tapped_layers or ())
    weights = _weights(files)
    if plan.markov_rank:
        markov = _weights(Folder(folder / MARKOV_FOLDER, f"{field}: {MARKOV_FOLDER}", _REMEDY))
        weights |= {MARKOV + name: value for name, value in markov.items()}
    if "mask_hidden" in weights:
        weights["mask_hidden"] = weights["mask_hidden"].reshape(1, 1, -1)
    own = {name for name in head.state_dict() if not name.startswith(TRAINING_ONLY)}
    if weights.keys() != own:
        name = min(weights.keys() ^ own)
        problem = "it is missing" if name in own else "the head has no such tensor"
        raise files.wrong(f"tensor {name}", None, problem, _REMEDY)
    for name, value in weights.items():
        if value.shape != (expected := head.state_dict()[name].shape):
            problem = f"its shape must be {list(expected)} for this target"
            raise files.wrong(f"tensor {name}", list(value.shape), problem, _REMEDY)
    head.load_state_dict(weights, strict=False)
    return head.eval(), plan


def read_size(target: Folder, key: str) -> int:
    """Read a size in the `config.json` of a target.

    Raises ConfigError if it is missing, or heads cannot be trained for this kind of target.
    """
    config = target.read_json("config.json")
    if (kind := config.get("model_type")) not in TARGET_TYPES:
        problem = f"heads can be trained for {', '.join(TARGET_TYPES)}"
        raise target.wrong("config.json: model_type", kind, problem, "Name such a target, or serve a head that exists.")
    return _count(target, config, key, "Copy it again.")


def read_plan(folder: Path, field: str = "HEAD") -> HeadPlan:
    """Read the plan of a head trained here from its checkpoint; settings not in the checkpoint have their defaults.

    Raises ConfigError if it is not such a head.
    """
    files = Folder(folder, field, _REMEDY)
    config = files.read_json("config.json")
    for key in ("norm_before_residual", "fc_norm", "norm_output"):
        if config.get(key) is not True:
            raise files.wrong(f"config.json: {key}", config.get(key), "it was trained in another way", _REMEDY)
    return _plan(files, config)


def _weights(files: Folder) -> dict[str, Tensor]:
    """Read the single weights file that training writes, as float32."""
    files.read_tensors()  # reports a damaged file
    file = files.path / "model.safetensors"
    if not file.is_file():
        raise files.wrong(file.name, None, "there is no such file", _REMEDY)
    return {name: value.float() for name, value in load_file(file).items()}


def _plan(files: Folder, config: dict[str, Any]) -> HeadPlan:
    taps = config.get(TAPS_KEY)
    if not isinstance(taps, list) or len(taps) != 3 or not all(isinstance(tap, int) for tap in taps):
        problem = "it must list three layers"
        raise files.wrong(f"config.json: {TAPS_KEY}", taps, problem, _REMEDY)
    return replace(
        HEAD_PLANS["p-eagle" if "ptd_token_id" in config else "eagle3"],
        layers=_count(files, config, "num_hidden_layers"),
        trained_depth=_count(files, config, "trained_depth"),
        markov_rank=0 if config.get(MARKOV_RANK_KEY) is None else _count(files, config, MARKOV_RANK_KEY),
        ngram_bias_nats=read_ngram_bias(files, config),
        tapped_layers=tuple(taps),
    )


def _count(files: Folder, config: dict[str, Any], key: str, fix: str = _REMEDY) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise files.wrong(f"config.json: {key}", value, "it must be a whole number from 1", fix)
    return value
