"""Checks whether a local draft head matches its target, before anything starts: a mismatch is slow or wrong.

The rules are those of vLLM's EAGLE-3 heads (`llama_eagle3.py`) and its drafting loop. Only config.json and safetensors
headers are read; repositories are not downloaded. Imports no torch and no vllm.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from peagle.config import Checkpoint, Deployment
from peagle.config.schema import closest
from peagle.engine.checkpoint import AGAIN, MARKOV_FOLDER, MARKOV_RANK_KEY, TAPS_KEY, Folder, Tensor, read_ngram_bias
from peagle.engine.checks.check import Check, raise_problems, run_check
from peagle.errors import ConfigError

# Heads in vLLM's registry that draft from a target's hidden states, as EAGLE-3 does.
ARCHITECTURES = (
    "LlamaForCausalLMEagle3",
    "Eagle3LlamaForCausalLM",
    "Eagle3MiniMaxM2ForCausalLM",
    "Eagle3Qwen2_5vlForCausalLM",
    "Eagle3Qwen3ForCausalLM",
    "Eagle3Qwen3vlForCausalLM",
    "Eagle3DeepseekV2ForCausalLM",
    "Eagle3DeepseekV3ForCausalLM",
)
# The same in the format of the speculators library, where `speculators_model_type` replaces the architecture.
SPECULATORS_TYPES: Mapping[str, str] = {"p-eagle": "peagle", "eagle3": "eagle3"}

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt", "tiktoken.model")
# vLLM's keys of the mask token, in its order.
MASK_TOKEN_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
# vLLM's variable for a context longer than the target was trained for.
_LONGER_KEY = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
FLOATS = frozenset({"F16", "BF16", "F32"})
MADE_UP = "dummy"
"""vLLM's `load_format` that reads no weights."""


def check_checkpoints(deployment: Deployment) -> None:
    """Check the local checkpoints of `deployment`; remote repositories are left to the engine.

    Raises ConfigError if a checkpoint is incomplete or damaged, or the head does not match its target.
    """
    raise_problems(examine_checkpoints(deployment))


def examine_checkpoints(deployment: Deployment) -> tuple[Check, ...]:
    """Return every check of the local checkpoints of `deployment`, with its outcome."""
    made_up = deployment.engine.get("load_format") == MADE_UP
    target, checks = _open(deployment.target, "target", made_up)
    if target is not None:
        checks += [
            run_check("target", "tokenizer", lambda: _tokenizer(target, deployment.engine)),
            run_check("target", "context", lambda: _context(target, deployment)),
        ]
    if deployment.drafter is None or not deployment.speculates:
        return tuple(checks)
    head, more = _open(deployment.drafter, "drafter", made_up)
    checks += more
    if head is not None:
        checks += _compare(deployment, head, target)
    return tuple(checks)


@dataclass(frozen=True, slots=True)
class _Contents:
    """A readable checkpoint; `tensors` is None if its weights are not safetensors."""

    folder: Folder
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None

    def integer(self, key: str, default: int | None = None, low: int = 1) -> int:
        """Return the whole number at `key`, at least `low`. Raises ConfigError if it is invalid, or has no default."""
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < low:
            problem = "it is required" if value is None else f"it must be a whole number from {low}"
            raise self.wrong(key, value, problem, AGAIN)
        return value

    def wrong(self, key: str, value: object, problem: str, fix: str) -> ConfigError:
        return self.folder.wrong(f"config.json: {key}", value, problem, fix)

    def misshaped(self, name: str, shape: tuple[int, ...], why: str) -> None:
        """Check the shape of the tensor `name`, if it exists and holds plain floats.

        Raises ConfigError if its shape is not `shape`; `why` explains the expected shape.
        """
        tensor = (self.tensors or {}).get(name)
        if tensor is not None and tensor.dtype in FLOATS and tensor.shape != shape:
            problem = f"its shape must be {list(shape)}: {why}"
            fix = "Use a head trained for this target."
            raise self.folder.wrong(f"tensor {name}", list(tensor.shape), problem, fix)


def _open(
    checkpoint: Checkpoint, subject: Literal["target", "drafter"], made_up: bool
) -> tuple[_Contents | None, list[Check]]:
    if not checkpoint.is_local:
        return None, [Check(subject, "checkpoint", "not checked", f"{checkpoint.source} is remote")]
    folder = Folder(Path(checkpoint.source), f"{subject}.source")
    found: dict[str, Any] = {}

    def config() -> str:
        found["config"] = folder.read_json("config.json")
        return str(found["config"].get("model_type", "no model_type"))

    def weights() -> str:
        if made_up:
            found["tensors"] = None
            return "made up"
        found["tensors"] = folder.read_tensors()
        return "not safetensors" if found["tensors"] is None else f"{len(found['tensors'])} tensors"

    checks = [run_check(subject, "config.json", config)]
    if "config" in found:
        checks.append(run_check(subject, "weights", weights))
    if "tensors" not in found:
        return None, checks
    return _Contents(folder, _flat(found["config"]), found["tensors"]), checks


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the sizes of its language model at the top level, wherever its format keeps them."""
    for inner in ("text_config", "transformer_layer_config"):
        if isinstance(config.get(inner), dict):
            return {**config[inner], **{key: value for key, value in config.items() if value is not None}}
    return dict(config)


def _tokenizer(target: _Contents, engine: Mapping[str, Any]) -> str:
    if engine.get("tokenizer") or engine.get("skip_tokenizer_init"):
        return "set by engine"
    for name in TOKENIZER_FILES:
        if (target.folder.path / name).is_file():
            if name.endswith(".json"):
                target.folder.read_json(name)
            return name
    raise target.folder.wrong("tokenizer.json", None, "there is no tokenizer", "Add it, or set engine.tokenizer.")


def _context(target: _Contents, deployment: Deployment) -> str:
    """Check the context length, unless the target's context is extended; then vLLM checks it."""
    config, asked = target.config, deployment.engine.get("max_model_len")
    longest, turns = config.get("max_position_embeddings"), config.get("rope_parameters") or {}
    plain = (
        isinstance(turns, dict)
        and turns.get("rope_type", "default") == "default"
        and not any(isinstance(each, dict) for each in turns.values())
    )
    if config.get("rope_scaling") or not plain or "model_max_length" in config or "hf_overrides" in deployment.engine:
        return "extended"
    if not isinstance(longest, int):
        return "not given"
    if isinstance(asked, int) and asked > longest and _LONGER_KEY not in {**os.environ, **deployment.environment}:
        problem = f"the target's context has {longest} tokens"
        raise ConfigError("engine.max_model_len", asked, problem, f"Lower it to {longest}.")
    return f"{longest} tokens"


def _compare(deployment: Deployment, head: _Contents, target: _Contents | None) -> list[Check]:
    drafter = deployment.drafter
    assert drafter is not None, "_compare needs a drafter"
    looks: dict[str, Callable[[], str]] = {
        "architecture": lambda: _architecture(head, drafter.method),
        "hidden size": lambda: _hidden_size(head, target),
        "vocabulary": lambda: _vocabulary(head, target),
        "tapped layers": lambda: _tapped_layers(head, target),
        "layers": lambda: _layers(head),
        "trained depth": lambda: _trained_depth(head, drafter.trained_depth),
    }
    if drafter.method == "p-eagle":
        looks["mask token"] = lambda: _mask(head)
        if head.config.get(MARKOV_RANK_KEY) is not None:
            looks["Markov head"] = lambda: _markov_head(head)
    else:
        looks["drafts"] = lambda: _one_by_one(head)
    return [run_check("drafter", name, look) for name, look in looks.items()]


def _architecture(head: _Contents, method: str) -> str:
    kind = head.config.get("speculators_model_type")
    if kind is not None:
        if kind != SPECULATORS_TYPES[method]:
            fix = "Write the drafter.method for which it was trained."
            raise head.wrong("speculators_model_type", kind, f"drafter.method is {method}", fix)
        return str(kind)
    named = head.config.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise head.wrong("architectures", named, "it must name one architecture", f"Write [{ARCHITECTURES[0]!r}].")
    # vLLM prefixes an architecture without Eagle3 in its name with it.
    name = named[0] if named[0].startswith("Eagle3") or named[0].endswith("Eagle3") else f"Eagle3{named[0]}"
    if name not in ARCHITECTURES:
        near = closest(name, ARCHITECTURES)
        fix = f"Did you mean {near}?" if near else f"Use a head of {', '.join(ARCHITECTURES[:2])} or similar."
        raise head.wrong("architectures", named, "vLLM knows no such draft head", fix)
    return named[0]


def _hidden_size(head: _Contents, target: _Contents | None) -> str:
    own = head.integer("hidden_size")
    expected = head.integer("target_hidden_size", default=own)
    if target is not None and expected != (actual := target.integer("hidden_size")):
        key = "target_hidden_size" if "target_hidden_size" in head.config else "hidden_size"
        fix = "Use a head trained for this target."
        raise head.wrong(key, expected, f"the target's hidden size is {actual}", fix)
    if head.tensors is not None and "fc.weight" not in head.tensors:
        raise head.folder.wrong("tensor fc.weight", None, "it is missing; it fuses the tapped layers", AGAIN)
    states = _fused_states(head)
    head.misshaped("fc.weight", (own, states * expected), f"it fuses {states} states of {expected} into {own}")
    shared = [name for name in ("embed_tokens.weight", "lm_head.weight") if head.tensors and name not in head.tensors]
    if own != expected and shared:
        fix = "Use a head that includes its own."
        raise head.folder.wrong(f"tensor {shared[0]}", None, f"the target's has width {expected}, not {own}", fix)
    return str(own) if own == expected else f"{own}, from the target's {expected}"


def _vocabulary(head: _Contents, target: _Contents | None) -> str:
    whole = head.integer("vocab_size")
    drafted = head.integer("draft_vocab_size", default=whole)
    own = head.integer("hidden_size")
    fix = "Use a head trained for this target."
    if target is not None and whole != (actual := target.integer("vocab_size")):
        raise head.wrong("vocab_size", whole, f"the target's vocabulary has {actual} tokens", fix)
    if drafted > whole:
        raise head.wrong("draft_vocab_size", drafted, f"it is above vocab_size, which is {whole}", fix)
    tensors = head.tensors
    if tensors is not None and drafted < whole:
        if not (maps := [tensor for name, tensor in tensors.items() if "d2t" in name]):
            problem = f"it is missing: the head drafts {drafted} of {whole} tokens, and d2t maps them"
            raise head.folder.wrong("tensor d2t", None, problem, AGAIN)
        if maps[0].elements != drafted:
            raise head.folder.wrong("tensor d2t", list(maps[0].shape), f"it must map {drafted} tokens", AGAIN)
        if "lm_head.weight" not in tensors:
            problem = f"it is missing: the target's gives {whole} tokens, not {drafted}"
            raise head.folder.wrong("tensor lm_head.weight", None, problem, AGAIN)
    head.misshaped("embed_tokens.weight", (whole, own), "vocab_size by hidden_size")
    head.misshaped("lm_head.weight", (drafted, own), "draft_vocab_size by hidden_size")
    return f"{whole} tokens" if drafted == whole else f"{drafted} of {whole} tokens"


def _fused_states(head: _Contents) -> int:
    """Return the number of target hidden states for which vLLM builds `fc`; vLLM reads only these two keys for it."""
    inner = head.config.get("eagle_config")
    listed = inner.get(TAPS_KEY) if isinstance(inner, dict) else None
    return head.integer("num_aux_hidden_states", default=len(listed) if isinstance(listed, list) and listed else 3)


def _tapped_layers(head: _Contents, target: _Contents | None) -> str:
    layers = None if target is None else target.integer("num_hidden_layers")
    inner = head.config.get("eagle_config")
    taps = head.config.get(TAPS_KEY) or (inner.get(TAPS_KEY) if isinstance(inner, dict) else None)
    if taps is None:
        if layers is None:
            return "vLLM's default"
        taps = [2, layers // 2, layers - 3]
        if len(set(taps)) < 3 or min(taps) < 0:
            problem = f"vLLM's default for {layers} layers, {taps}, repeats a layer"
            raise head.wrong(TAPS_KEY, None, problem, "Write the layers with which the head was trained.")
    elif not isinstance(taps, list) or not all(isinstance(tap, int) and not isinstance(tap, bool) for tap in taps):
        raise head.wrong(TAPS_KEY, taps, "it must list layers by number", AGAIN)
    count = _fused_states(head)
    fix = "Write the layers with which the head was trained."
    if len(set(taps)) != count or len(taps) != count:
        raise head.wrong(TAPS_KEY, taps, f"it must name {count} different layers", fix)
    if min(taps) < 0 or (layers is not None and max(taps) > layers):
        raise head.wrong(TAPS_KEY, taps, f"the target's hidden states go from 0 to {layers or 'its depth'}", fix)
    return ", ".join(map(str, taps))


def _layers(head: _Contents) -> str:
    count = head.integer("num_hidden_layers")
    if head.tensors is None:
        return f"{count} declared"
    for index in range(count):
        prefixes = (f"layers.{index}.", "midlayer.") if index == 0 else (f"layers.{index}.",)
        if not any(name.startswith(prefixes) for name in head.tensors):
            problem = f"num_hidden_layers is {count}, but there are no weights for it"
            raise head.folder.wrong(f"tensor layers.{index}", None, problem, AGAIN)
    return str(count)


def _trained_depth(head: _Contents, depth: int) -> str:
    declared = head.config.get("trained_depth")
    if declared is None:
        try:
            declared = head.config["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
        except (KeyError, IndexError, TypeError):
            return f"{depth}; the head declares none"
    if not isinstance(declared, int) or isinstance(declared, bool) or declared < 1:
        raise head.wrong("trained_depth", declared, "it must be a whole number from 1", AGAIN)
    if depth > declared:
        problem = f"the head was trained to depth {declared}"
        raise ConfigError("drafter.trained_depth", depth, problem, f"Lower it to {declared}.")
    return str(depth)


def _one_by_one(head: _Contents) -> str:
    if any("mask_hidden" in name for name in head.tensors or ()):
        fix = "Write method: p-eagle, or use an EAGLE-3 head."
        raise head.folder.wrong("tensor mask_hidden", None, "only a head that drafts all tokens at once has it", fix)
    return "one token at a time"


def _mask(head: _Contents) -> str:
    key = next((key for key in MASK_TOKEN_KEYS if head.config.get(key) is not None), None)
    fix = "Use a P-EAGLE head, or write method: eagle3."
    if key is None:
        raise head.wrong(MASK_TOKEN_KEYS[-1], None, "a P-EAGLE head must name its mask token", fix)
    token, tokens = head.integer(key, low=0), head.integer("vocab_size")
    if token >= tokens:
        raise head.wrong(key, token, f"the vocabulary ends at {tokens - 1}", "Write the mask token of its training.")
    if head.tensors is None:
        return f"token {token}"
    hidden = next((tensor for name, tensor in head.tensors.items() if "mask_hidden" in name), None)
    if hidden is None:
        raise head.folder.wrong("tensor mask_hidden", None, "it is missing; P-EAGLE drafts from it", fix)
    own = head.integer("hidden_size")
    width = _fused_states(head) * head.integer("target_hidden_size", default=own)
    if hidden.elements != width:
        problem = f"its shape must be [1, {width}]: one state for each tapped layer"
        raise head.folder.wrong("tensor mask_hidden", list(hidden.shape), problem, AGAIN)
    return f"token {token}"


def _markov_head(head: _Contents) -> str:
    rank, tokens, size = (head.integer(key) for key in (MARKOV_RANK_KEY, "vocab_size", "hidden_size"))
    folder = Folder(head.folder.path / MARKOV_FOLDER, head.folder.field, AGAIN)
    found = folder.read_tensors() or {}
    shapes = {
        "markov_w1.weight": (tokens, rank),
        "markov_w2.weight": (tokens, rank),
        "gate_proj.weight": (rank, size + rank),
        "gate_proj.bias": (rank,),
    }
    for name, shape in shapes.items():
        if name not in found:
            raise folder.wrong(f"tensor {name}", None, "it is missing", AGAIN)
        if found[name].shape != shape:
            raise folder.wrong(f"tensor {name}", list(found[name].shape), f"its shape must be {list(shape)}", AGAIN)
    nats = read_ngram_bias(head.folder, head.config)
    return f"rank {rank}" + (f", {nats:g} nats for each token of an n-gram" if nats else "")
