"""Writes a trained head as a checkpoint that vLLM can load."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from peagle.drafter.train.compute import CPU
from peagle.drafter.train.head_plan import HeadPlan
from peagle.engine.checkpoint import MARKOV_FOLDER, MARKOV_RANK_KEY, NGRAM_BIAS_KEY, TAPS_KEY

if TYPE_CHECKING:
    from speculators.models.eagle3 import Eagle3DraftModel

# The target's own matrices, needed only for training.
TRAINING_ONLY = ("verifier_lm_head.", "verifier_norm.", "rotary_emb.", "t2d", "d2t")


MARKOV = "markov_head."


def export_head(head: "Eagle3DraftModel", out: Path, plan: HeadPlan, mask_token: int | None) -> None:
    """Write `config.json` and bfloat16 `model.safetensors` into `out`, and a Markov head into a subfolder."""
    weights = {
        name: value.detach().to(CPU, torch.bfloat16).contiguous()
        for name, value in head.state_dict().items()
        if not name.startswith(TRAINING_ONLY)
    }
    if "mask_hidden" in weights:
        weights["mask_hidden"] = weights["mask_hidden"].reshape(1, -1)
    if plan.markov_rank:
        markov = {name: weights.pop(name) for name in sorted(weights) if name.startswith(MARKOV)}
        (out / MARKOV_FOLDER).mkdir(exist_ok=True)
        _save({name.removeprefix(MARKOV): weight for name, weight in markov.items()}, out / MARKOV_FOLDER)
    _save(weights, out)
    layer = head.config.transformer_layer_config
    taps = list(head.config.eagle_aux_hidden_state_layer_ids)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": layer.vocab_size,
        "draft_vocab_size": head.config.draft_vocab_size,
        "hidden_size": layer.hidden_size,
        "intermediate_size": layer.intermediate_size,
        "num_hidden_layers": plan.layers,
        "num_attention_heads": layer.num_attention_heads,
        "num_key_value_heads": layer.num_key_value_heads,
        "head_dim": layer.head_dim,
        "hidden_act": layer.hidden_act,
        "rms_norm_eps": layer.rms_norm_eps,
        "rope_parameters": layer.rope_parameters,
        "max_position_embeddings": layer.max_position_embeddings,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": layer.bos_token_id,
        "eos_token_id": layer.eos_token_id,
        "norm_before_residual": head.config.norm_before_residual,
        "fc_norm": head.config.fc_norm,
        "norm_output": head.config.norm_output,
        TAPS_KEY: taps,
        "eagle_config": {TAPS_KEY: taps},
        "trained_depth": plan.trained_depth,
    }
    if plan.method == "p-eagle":
        config["ptd_token_id"] = mask_token
    if plan.markov_rank:
        config[MARKOV_RANK_KEY] = plan.markov_rank
        if plan.ngram_bias_nats:
            config[NGRAM_BIAS_KEY] = plan.ngram_bias_nats
    (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _save(weights: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
