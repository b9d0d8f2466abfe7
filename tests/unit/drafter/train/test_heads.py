"""Heads for every supported kind of target, with the target's own reused weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.head_plan import HEAD_PLANS, TARGET_TYPES
from peagle.drafter.train.heads import Row, TargetTap, make_head, train_head
from peagle.drafter.train.prepare import Job, prepare
from peagle.drafter.train.training import Progress
from peagle.errors import ConfigError

VOCABULARY = 64
PLAN = replace(
    HEAD_PLANS["p-eagle"],
    layers=2,
    trained_depth=3,
    tapped_layers=(1, 2, 3),
    steps=1,
    tokens_per_step=96,
    generated_ratio=1.0,
)
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}


def target_of(kind: str, folder: Path, **more: Any) -> Path:
    """Create a target with new weights, none of which equal the initial weights of a layer or a norm."""
    own = EXPERTS if kind in ("mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss") else {}
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SMALL, **own, **more))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    model.save_pretrained(folder)
    words = {f"w{number}": number for number in range(VOCABULARY - 1)} | {"<mask>": VOCABULARY - 1}
    Tokenizer(WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    return folder


def rows() -> GeneratedText:
    tokens = np.random.default_rng(0).integers(0, VOCABULARY - 1, (4, 24)).astype(np.int32)
    return GeneratedText(tokens, np.full(4, 8, np.int32))


def ignore(_progress: Progress) -> None:
    pass


@pytest.mark.parametrize("kind", TARGET_TYPES)
def test_a_head_learns_from_its_targets_own_logits_and_is_one_that_vllm_knows(kind: str, tmp_path: Path) -> None:
    target = target_of(kind, tmp_path / "target")
    rows().save(tmp_path / "rows.npz")
    job = Job(target, tmp_path / "rows.npz", tmp_path / "head", PLAN, corpus=None, mask_token="<mask>")
    material = prepare(job)
    head = make_head(target, AutoConfig.from_pretrained(target), material.mask_token, PLAN, (1, 2, 3))
    tapped = TargetTap(target, (1, 2, 3))(Row(material.text.tokens[0], 8))
    with torch.no_grad():
        own = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)(
            torch.from_numpy(material.text.tokens[:1]).long()
        ).logits
        seen = head.verifier_lm_head(head.verifier_norm(tapped["verifier_last_hidden_states"].float()))
    # The training pass of the target is in bfloat16.
    assert torch.nn.functional.cosine_similarity(seen, own[:, 1:], dim=-1).min() > 0.99
    assert torch.equal(head.embed_tokens.weight, load_file(target / "model.safetensors")["model.embed_tokens.weight"])

    train_head(target, material.text, material.corpus, material.mask_token, job.out, PLAN, ignore)
    config = json.loads((job.out / "config.json").read_text())
    assert (config["architectures"], config["attention_bias"]) == (["LlamaForCausalLMEagle3"], False)
    layer = {name.removeprefix("layers.1.") for name in load_file(job.out / "model.safetensors") if "layers.1." in name}
    assert layer == {
        *(f"self_attn.{each}_proj.weight" for each in "qkvo"),
        *(f"mlp.{each}_proj.weight" for each in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    }


def test_a_targets_biases_are_not_its_heads(tmp_path: Path) -> None:
    target = target_of("llama", tmp_path, attention_bias=True, mlp_bias=True)
    head = make_head(target, AutoConfig.from_pretrained(target), 1, PLAN, (1, 2, 3))
    biases = [name for name in head.state_dict() if name.endswith(".bias")]
    assert biases == ["markov_head.gate_proj.bias"]


def test_a_target_of_another_kind_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    target = target_of("llama", tmp_path / "target")
    config = target / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "gemma"}))
    rows().save(tmp_path / "rows.npz")
    job = Job(target, tmp_path / "rows.npz", tmp_path / "head", PLAN, corpus=None, mask_token="<mask>")
    with pytest.raises(ConfigError, match=r"model_type = .*gemma.*heads can be trained for gpt_oss, llama"):
        prepare(job)
    assert not job.out.exists()


def test_a_head_is_not_written_over_its_target(tmp_path: Path) -> None:
    target = target_of("llama", tmp_path / "target")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    rows().save(tmp_path / "rows.npz")
    job = Job(target, tmp_path / "rows.npz", tmp_path / "x" / ".." / "target", PLAN, corpus=None, mask_token="<mask>")
    with pytest.raises(ConfigError, match=r"out = .*the head would overwrite the target"):
        prepare(job)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
