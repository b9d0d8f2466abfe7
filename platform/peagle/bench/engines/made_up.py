"""A model of a real one's shape with made-up weights: what a step costs there, measured without a download.

The target is a `config.json`; a P-EAGLE and an EAGLE-3 head to match are made of its sizes. What they draft is worth
nothing, so a comparison that is about more than step times names an acceptance curve, which vLLM then plays: its
synthetic rejection sampling, on a GPU.
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
# Heads as they are published: P-EAGLE's of four layers, EAGLE-3's of one.
_HEAD_LAYERS: Mapping[str, int] = {PEAGLE: 4, EAGLE3: 1}
_HEAD_KEYS = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "dtype"),
)
# A head's feed-forward part beside its width, where the target's own is one of many experts.
_HEAD_FEED_RATIO = 3
_EXPERT_KEYS = ("num_experts", "num_local_experts")
_DEPTH_MAX = 64
_TAPPED = 3


def known_shapes() -> tuple[str, ...]:
    """Names of the shapes that are shipped here."""
    folder = files("peagle.bench") / "data" / "shapes"
    return tuple(sorted(each.name.removesuffix(".json") for each in folder.iterdir() if each.name.endswith(".json")))


def read_shape(shape: str) -> dict[str, Any]:
    """The `config.json` of a target: one that is shipped here, by name, or a file.

    Raises:
        ConfigError: There is no such shape, or the file holds none.
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
        raise ConfigError("--shape", shape, f"it does not say {', '.join(needed)}", "Name a target's config.json.")
    if config["num_hidden_layers"] < _TAPPED:
        problem = f"it has {config['num_hidden_layers']} layers, and a head taps {_TAPPED}"
        raise ConfigError("--shape", shape, problem, "Name a deeper target.")
    return config


def head_config(target: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The `config.json` of a head for `target`, of its width, heads and vocabulary."""
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
    """Three layers that differ: near the first, in the middle, the last."""
    first, last = min(2, layers - 3), layers - 1
    return [first, min(max(first + 1, layers // 2), last - 1), last]


@contextmanager
def made_up(shape: str, like: Deployment | None, accelerator: str) -> Iterator[dict[str, Deployment]]:
    """Deployments of a shape with made-up weights, one for each method of drafting.

    Args:
        shape: See `read_shape`.
        like: What else holds of the engine: arguments, speculation, resources; None for the defaults.
        accelerator: `cpu` or `gpu`, where `like` does not say.

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
        # One pass a position: a lower K would pay for the passes that it throws away.
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
    """The probabilities that the first, the first two, … drafts are right, up to `depth_max`; None where none is asked.

    Raises:
        ConfigError: They are none, too few, or the engine cannot play them.
    """
    if text is None:
        return None
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    falling = all(one >= other for one, other in pairwise(rates))
    if not rates or not falling or not 0.0 <= min(rates) <= max(rates) <= 1.0:
        problem = "it is no falling list of probabilities"
        raise ConfigError("--acceptance", text, problem, "Write them with commas, such as .8,.6,.45.")
    if len(rates) < depth_max:
        problem = f"it has {len(rates)} positions, and {depth_max} are drafted"
        raise ConfigError("--acceptance", text, problem, "Write one for each.")
    if accelerator == "cpu":
        problem = "vLLM accepts drafts by a curve on a GPU only"
        raise ConfigError("--acceptance", text, problem, "Leave it out: step times do not depend on it.")
    return rates[:depth_max]


def synthetic_acceptance(acceptance: Sequence[float]) -> dict[str, Any]:
    """What vLLM's `speculative_config` says where drafts are accepted by a curve, whatever was drafted."""
    return {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(acceptance)}


def random_prompts(vocabulary: int, count: int, tokens: int = PROMPT_TOKENS) -> tuple[list[int], ...]:
    """The same every time: prompts for a model whose text nobody reads."""
    numbers = Random(f"{vocabulary} {tokens}")
    return tuple([numbers.randrange(vocabulary) for _ in range(tokens)] for _ in range(count))
