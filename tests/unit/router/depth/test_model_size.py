"""A target's size follows from its config.json; missing, invalid or unknown values raise an error that names them."""

from collections.abc import Mapping
from typing import Any

import pytest

from peagle.errors import ConfigError
from peagle.router.depth import TARGETS, TargetSize, target_size

GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "tie_word_embeddings": False,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}
GPT_OSS_120B = {**GPT_OSS_20B, "num_hidden_layers": 36, "num_local_experts": 128}
QWEN3_30B_A3B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}
LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
LLAMA_8B_WEIGHTS = 8.03e9 - 4096 * 128256  # without the input embedding
TABLE_TOLERANCE = 0.15


@pytest.mark.parametrize(
    ("config", "name"),
    [(GPT_OSS_20B, "gpt-oss-20b"), (GPT_OSS_120B, "gpt-oss-120b"), (QWEN3_30B_A3B, "qwen3-coder-30b-a3b")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_derived_sizes_are_near_the_table_s(config: Mapping[str, Any], name: str) -> None:
    derived, table = target_size(config), TARGETS[name]
    for field in ("dense_gb", "experts_gb", "active_parameters"):
        assert getattr(derived, field) == pytest.approx(getattr(table, field), rel=TABLE_TOLERANCE), field
    assert (derived.experts, derived.experts_active) == (table.experts, table.experts_active)


def test_a_dense_target_reads_all_of_it_but_its_input_embedding() -> None:
    size = target_size(LLAMA_8B)
    assert size.active_parameters == pytest.approx(LLAMA_8B_WEIGHTS, rel=0.001)
    assert size == TargetSize(pytest.approx(2 * size.active_parameters / 1e9), 0.0, size.active_parameters)


def test_a_tied_output_layer_is_read_all_the_same() -> None:
    assert target_size({**LLAMA_8B, "tie_word_embeddings": True}) == target_size(LLAMA_8B)


def test_sizes_of_a_model_that_sees_are_its_language_model_s() -> None:
    text = {**LLAMA_8B, "model_type": "gemma3_text", "head_dim": 128}
    whole = {"model_type": "gemma3", "hidden_size": None, "vision_config": {"hidden_size": 7}, "text_config": text}
    assert target_size(whole) == target_size(LLAMA_8B)


@pytest.mark.parametrize(
    ("changes", "arguments", "ratio"),
    [
        ({"torch_dtype": "float32"}, {}, 1.0),
        ({"torch_dtype": "float32"}, {"on_gpu": False}, 2.0),
        ({"torch_dtype": None}, {}, 1.0),
        ({"torch_dtype": None, "dtype": "torch.float16"}, {}, 1.0),
        ({}, {"dtype": "auto"}, 1.0),
        ({}, {"dtype": "float32"}, 2.0),
        ({"quantization_config": None}, {}, 1.0),
    ],
)
def test_bytes_of_a_weight_follow_its_number_format(
    changes: dict[str, Any], arguments: dict[str, Any], ratio: float
) -> None:
    assert target_size({**LLAMA_8B, **changes}, **arguments).dense_gb == ratio * target_size(LLAMA_8B).dense_gb


def test_fp8_halves_the_layers_and_not_the_output_layer() -> None:
    plain, output_gb = target_size(LLAMA_8B).dense_gb, 2 * 4096 * 128256 / 1e9
    expected = pytest.approx((plain - output_gb) / 2 + output_gb)
    assert target_size(LLAMA_8B, quantization="fp8").dense_gb == expected
    assert target_size({**LLAMA_8B, "quantization_config": {"quant_method": "fp8"}}).dense_gb == expected


def test_layers_without_experts_are_read_by_every_token() -> None:
    half = target_size({**QWEN3_30B_A3B, "decoder_sparse_step": 2})
    listed = target_size({**QWEN3_30B_A3B, "mlp_only_layers": list(range(24))})
    whole = target_size(QWEN3_30B_A3B)
    assert half == listed
    assert half.experts_gb == whole.experts_gb / 2
    assert half.dense_gb == pytest.approx(whole.dense_gb + 24 * (3 * 2048 * 6144 - 2048 * 128) / 1e9)


def test_shared_experts_are_read_by_every_token() -> None:
    config = {**QWEN3_30B_A3B, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632}
    more = 48 * 3 * 2048 * 5632
    assert target_size(config).dense_gb == pytest.approx(target_size(QWEN3_30B_A3B).dense_gb + more / 1e9)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": None}, "model_type"),
        ({"model_type": "mamba"}, "model_type"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": "gemma4_text", "hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input"),
        ({"model_type": "gemma"}, "head_dim"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"hidden_size": 4096.0}, "hidden_size"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": [8, 8]}, "num_key_value_heads"),
        ({"intermediate_size": -1}, "intermediate_size"),
        ({"num_experts": "many"}, "num_experts"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts": 8, "mlp_only_layers": 3}, "mlp_only_layers"),
        ({"num_experts": 8, "mlp_only_layers": [[]]}, "mlp_only_layers"),
        ({"torch_dtype": "int4"}, "dtype"),
        ({"torch_dtype": {}, "dtype": {"a": 1}}, "dtype"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"quantization_config": {}}, "quantization_config"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ],
)
def test_an_invalid_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        target_size({**LLAMA_8B, **changes})
    assert caught.value.field == field


@pytest.mark.parametrize("arguments", [{"dtype": "int4"}, {"quantization": "awq"}])
def test_an_engine_argument_that_makes_the_size_unknown_is_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^engine\."):
        target_size(LLAMA_8B, **arguments)
