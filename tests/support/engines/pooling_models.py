"""Tiny models that embed or score text: random weights, and the embedded target's tokenizer."""

import shutil
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from support.paths import REPOSITORY

TOKENIZER = REPOSITORY / "deployments" / "embedded" / "target"
VECTOR, CONTEXT_TOKENS = 64, 256


def write_embedding_model(folder: Path) -> Path:
    """Write a model whose vectors have `VECTOR` numbers."""
    return _write(folder, BertModel, BertConfig())


def write_reranking_model(folder: Path) -> Path:
    """Write a cross-encoder with one label."""
    return _write(folder, BertForSequenceClassification, BertConfig(num_labels=1))


def _write(folder: Path, kind: type, config: BertConfig) -> Path:
    # vLLM's attention on a CPU takes heads of 32 numbers or more.
    config.update({"hidden_size": VECTOR, "num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2})
    config.update({"vocab_size": len(AutoTokenizer.from_pretrained(TOKENIZER))})
    config.update({"max_position_embeddings": CONTEXT_TOKENS})
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, folder)
    return folder
