"""Derives a target's size from its `config.json`: the weights that a step reads, and the work of one token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.errors import ConfigError
from peagle.router.depth.priors import TargetSize

# By `model_type`: decoders with attention and a gated MLP, or experts instead of it. Other types have other layers.
_FAMILIES = frozenset(
    {"llama", "mistral", "phi3", "granite", "olmo2", "smollm3", "qwen2", "qwen3"}
    | {"gemma", "gemma2", "gemma3_text", "gemma4_text"}
    | {"gpt_oss", "mixtral", "olmoe", "granitemoe", "qwen2_moe", "qwen3_moe"}
)
# Settings that add further layers in some models of these families.
_MORE_KEYS = ("hidden_size_per_layer_input", "enable_moe_block", "use_double_wide_mlp")
TIMED_ANYWAY = "Keep speculation.calibration_s above 0, and steps are timed before the first request."

_LAYERS_MAX, _SIZE_MAX = 10_000, 1 << 31

_DTYPE_BYTES: Mapping[str, float] = {"bfloat16": 2.0, "float16": 2.0, "half": 2.0, "float32": 4.0, "float": 4.0}
_FP8_BYTES = 1.0
# Four bits, and an eight-bit scale for every 32 weights.
_MXFP4_BYTES = 0.53125


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes of one weight, by its location; the output layer is never quantized."""

    plain: float
    layers: float
    experts: float


@dataclass(frozen=True, slots=True)
class _Config:
    fields: Mapping[str, Any]

    def whole(self, *keys: str, most: int = _SIZE_MAX, default: int | None = None) -> int:
        """Return the positive integer at the first of `keys` that is present.

        Raises ConfigError if there is none and no default.
        """
        key = next((key for key in keys if self.fields.get(key) is not None), keys[0])
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            problem = "it is required" if value is None else f"it must be a whole number from 1 to {most}"
            raise ConfigError(key, value, problem, TIMED_ANYWAY)
        return value

    def has(self, *keys: str) -> bool:
        return any(self.fields.get(key) not in (None, 0) for key in keys)


def target_size(
    config: Mapping[str, Any], dtype: str | None = None, quantization: str | None = None, on_gpu: bool = True
) -> TargetSize:
    """Derive the size of a target from its `config.json`.

    The input embedding does not count, since a token reads one row of it. The output layer counts, tied or not.

    Args:
        config: The file's content.
        dtype: The engine's dtype; None or `auto` for the file's own.
        quantization: The engine's quantization; None for the file's own.
        on_gpu: On a GPU vLLM serves float32 in 16 bits, unless `dtype` says otherwise.

    Raises:
        ConfigError: A field is missing or invalid, or the layers or the quantization are of an unknown kind. The field
            is the file's, unless it begins with `engine.`.
    """
    inner = config.get("text_config")
    text = {key: value for key, value in inner.items() if value is not None} if isinstance(inner, Mapping) else {}
    known = _Config({**config, **text})
    _check_family(known)
    width, layers = known.whole("hidden_size"), known.whole("num_hidden_layers", most=_LAYERS_MAX)
    attention = _attention_parameters(known, width)
    output = known.whole("vocab_size") * width
    experts = _experts(known)
    sparse = _sparse_layers(known, layers) if experts else 0
    dense = layers * attention
    if sparse < layers:
        dense += (layers - sparse) * 3 * width * known.whole("intermediate_size")
    bytes_of = _bytes(known, dtype, quantization, on_gpu)
    if not experts:
        return TargetSize(_gb(dense * bytes_of.layers + output * bytes_of.plain), 0.0, float(dense + output))
    shared = known.whole("shared_expert_intermediate_size") if known.has("shared_expert_intermediate_size") else 0
    dense += sparse * width * (experts + 3 * shared)
    active = known.whole("num_experts_per_tok", "experts_per_token", most=experts)
    expert = 3 * width * known.whole("moe_intermediate_size", "intermediate_size")
    return TargetSize(
        _gb(dense * bytes_of.layers + output * bytes_of.plain),
        _gb(sparse * experts * expert * bytes_of.experts),
        float(dense + output + sparse * active * expert),
        experts,
        active,
    )


def _check_family(known: _Config) -> None:
    family = known.fields.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES:
        raise ConfigError("model_type", family, "its layers are unknown", TIMED_ANYWAY)
    for key in _MORE_KEYS:
        if known.has(key):
            raise ConfigError(key, known.fields[key], "the layers that it adds are unknown", TIMED_ANYWAY)


def _attention_parameters(known: _Config, width: int) -> int:
    """Return the number of weights in the four projections of one layer."""
    heads = known.whole("num_attention_heads")
    # Gemma has a different default.
    usual = None if str(known.fields["model_type"]).startswith("gemma") else max(1, width // heads)
    of_head = known.whole("head_dim", default=usual)
    return 2 * width * of_head * (heads + known.whole("num_key_value_heads", default=heads))


def _experts(known: _Config) -> int:
    keys = ("num_experts", "num_local_experts")
    return known.whole(*keys, most=_SIZE_MAX) if known.has(*keys) else 0


def _sparse_layers(known: _Config, layers: int) -> int:
    """Return the number of layers with experts instead of an MLP."""
    step = known.whole("decoder_sparse_step", default=1)
    dense = known.fields.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ConfigError("mlp_only_layers", dense, "it must list layers", TIMED_ANYWAY)
    only = set(dense)
    return sum((layer + 1) % step == 0 and layer not in only for layer in range(layers))


def _bytes(known: _Config, dtype: str | None, quantization: str | None, on_gpu: bool) -> _Bytes:
    own = known.fields.get("dtype") or known.fields.get("torch_dtype")
    chosen = dtype not in (None, "auto")
    name = str(dtype if chosen else own or "float32").removeprefix("torch.")
    if name not in _DTYPE_BYTES:
        raise ConfigError(
            "engine.dtype" if chosen else "dtype", name, "the size of its weights is unknown", TIMED_ANYWAY
        )
    plain = _DTYPE_BYTES[name]
    if on_gpu and not chosen:
        plain = min(plain, 2.0)
    match quantization or _quantization(known):
        case None:
            return _Bytes(plain, plain, plain)
        case "fp8":
            return _Bytes(plain, _FP8_BYTES, _FP8_BYTES)
        case "mxfp4":
            return _Bytes(plain, plain, _MXFP4_BYTES)
        case other:
            field = "engine.quantization" if quantization else "quantization_config"
            raise ConfigError(field, other, "the size of its weights is unknown", TIMED_ANYWAY)


def _quantization(known: _Config) -> str | None:
    said = known.fields.get("quantization_config")
    if said is None:
        return None
    method = said.get("quant_method") if isinstance(said, Mapping) else None
    if not isinstance(method, str):
        raise ConfigError("quantization_config", said, "it has no quant_method", TIMED_ANYWAY)
    return method


def _gb(count_bytes: float) -> float:
    return count_bytes / 1e9
