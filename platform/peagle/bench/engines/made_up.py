"""A model with a real model's shape and random weights, to measure step times without a download.

The target is a `config.json`; matching P-EAGLE and EAGLE-3 heads are made from its sizes. Their drafts are random, so a
comparison of more than step times needs an acceptance curve, which vLLM applies by synthetic rejection sampling, on a
GPU.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from peagle.bench.core.records import EAGLE3, PEAGLE
from peagle.config import Deployment, parse_deployment
from peagle.config.schema import closest
from peagle.errors import ConfigError

PROMPT_TOKENS = 128
# Layers of published heads: four for P-EAGLE, one for EAGLE-3.
_HEAD_LAYERS: Mapping[str, int] = {PEAGLE: 4, EAGLE3: 1}
_HEAD_KEYS = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "dtype"),
)
# Feed-forward size of a head relative to its width, if the target's own is that of one of many experts.
_HEAD_FEED_RATIO = 3
_EXPERT_KEYS = ("num_experts", "num_local_experts")
_DEPTH_MAX = 64
_TAPPED = 3


def known_shapes() -> tuple[str, ...]:
    """Return the names of the bundled shapes."""
    folder = files("peagle.bench") / "data" / "shapes"
    return tuple(sorted(each.name.removesuffix(".json") for each in folder.iterdir() if each.name.endswith(".json")))


def read_shape(shape: str) -> dict[str, Any]:
    """Return the `config.json` of a target: a bundled shape by name, or a file.

    Raises:
        ConfigError: There is no such shape, or the file is not a valid shape.
    """
    if shape in known_shapes():
        text = (files("peagle.bench") / "data" / "shapes" / f"{shape}.json").read_text(encoding="utf-8")
    else:
        near = closest(shape, known_shapes())
        fix = f"Did you mean {near}?" if near else f"Name a config.json, or one of {', '.join(known_shapes())}."
        try:
            text = Path(shape).read_text(encoding="utf-8")
        except (OSError, ValueError):
            raise ConfigError("--shape", shape, "there is no such shape", fix) from None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if not isinstance(config, dict) or not all(type(config.get(key)) is int for key in needed):
        raise ConfigError("--shape", shape, f"it has no {', '.join(needed)}", "Name a target's config.json.")
    if config["num_hidden_layers"] < _TAPPED:
        problem = f"it has {config['num_hidden_layers']} layers, but a head taps {_TAPPED}"
        raise ConfigError("--shape", shape, problem, "Name a deeper target.")
    return config


def head_config(target: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return the `config.json` of a head for `target`, with its width, heads and vocabulary."""
    hidden = target["hidden_size"]
    dense = not any(target.get(key) for key in _EXPERT_KEYS)
    taps = _tapped(target["num_hidden_layers"])
    config = {key: target[key] for key in _HEAD_KEYS if target.get(key) is not None}
    config |= {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "num_hidden_layers": _HEAD_LAYERS[method],
        "intermediate_size": target["intermediate_size"] if dense else _HEAD_FEED_RATIO * hidden,
        "draft_vocab_size": target["vocab_size"],
        "eagle_aux_hidden_state_layer_ids": taps,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": taps},
        "num_aux_hidden_states": _TAPPED,
        "trained_depth": _DEPTH_MAX,
    }
    return config | ({"ptd_token_id": 0} if method == PEAGLE else {})


def _tapped(layers: int) -> list[int]:
    """Return three distinct layers: near the first, in the middle, the last."""
    first, last = min(2, layers - 3), layers - 1
    return [first, min(max(first + 1, layers // 2), last - 1), last]


@contextmanager
def made_up(shape: str, like: Deployment | None, accelerator: str) -> Iterator[dict[str, Deployment]]:
    """Yield deployments of a shape with random weights, one per drafting method.

    Args:
        shape: See `read_shape`.
        like: Template for engine arguments, speculation and resources; None for the defaults.
        accelerator: `cpu` or `gpu`, if `like` does not set it.

    Raises:
        ConfigError: There is no such shape.
    """
    target = read_shape(shape)
    with TemporaryDirectory(prefix="peagle-shape-") as folder:
        _write(Path(folder, "target"), target)
        for method in _HEAD_LAYERS:
            _write(Path(folder, method), head_config(target, method))
        yield {method: _deployment(shape, Path(folder), method, like, accelerator) for method in _HEAD_LAYERS}


def _write(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _deployment(shape: str, folder: Path, method: str, like: Deployment | None, accelerator: str) -> Deployment:
    raw: dict[str, Any] = {"speculation": {}, "engine": {}, "resources": {"accelerator": accelerator}}
    if like is not None:
        raw = like.model_dump(exclude_unset=True, include={"speculation", "engine", "environment", "resources"})
    engine = {**raw.get("engine", {}), "load_format": "dummy", "skip_tokenizer_init": True}
    speculation = dict(raw.get("speculation", {}))
    if method == EAGLE3:
        # One pass per position: a lower K would waste passes.
        speculation |= {"adaptive": None, "by_request": None, "inter_token_s_max": None}
    return parse_deployment(
        {
            **raw,
            "name": Path(shape).stem or "shape",
            "target": {"source": str(folder / "target")},
            "drafter": {"source": str(folder / method), "method": method, "trained_depth": _DEPTH_MAX},
            "speculation": speculation,
            "engine": engine,
        },
        origin="--shape",
    )


def read_acceptance(text: str | None, depth_max: int, accelerator: str) -> tuple[float, ...] | None:
    """Parse the probabilities that the first, the first two, … drafts are accepted, up to `depth_max`; None if absent.

    Raises:
        ConfigError: They are invalid, too few, or not supported by the engine.
    """
    if text is None:
        return None
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    falling = all(one >= other for one, other in pairwise(rates))
    if not rates or not falling or not 0.0 <= min(rates) <= max(rates) <= 1.0:
        problem = "it is not a decreasing list of probabilities"
        raise ConfigError("--acceptance", text, problem, "Separate them with commas, such as .8,.6,.45.")
    if len(rates) < depth_max:
        problem = f"it has {len(rates)} positions, but {depth_max} are drafted"
        raise ConfigError("--acceptance", text, problem, "Write one probability per position.")
    if accelerator == "cpu":
        problem = "vLLM supports acceptance curves only on a GPU"
        raise ConfigError("--acceptance", text, problem, "Omit it: step times do not depend on it.")
    return rates[:depth_max]


def synthetic_acceptance(acceptance: Sequence[float]) -> dict[str, Any]:
    """Return vLLM's `speculative_config` fields for acceptance by a curve."""
    return {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(acceptance)}


def random_prompts(vocabulary: int, count: int, tokens: int = PROMPT_TOKENS) -> tuple[list[int], ...]:
    """Return reproducible random prompts, for a model with random weights."""
    numbers = Random(f"{vocabulary} {tokens}")
    return tuple([numbers.randrange(vocabulary) for _ in range(tokens)] for _ in range(count))
