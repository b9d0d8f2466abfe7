"""Tiny checkpoints for tests that read them: real files of the real formats, with shapes of a few numbers."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from peagle.config import Deployment, parse_deployment

HIDDEN, VOCABULARY, LAYERS, HEAD_LAYERS, TAPS = 8, 32, 16, 2, [2, 8, 13]


@dataclass
class FakeCheckpoint:
    """A checkpoint to be written to `folder`; a test changes what it is about first. None removes a key or tensor."""

    folder: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    files: dict[str, str] = field(default_factory=dict)

    def write(self, config: dict[str, Any] | None = None, shapes: dict[str, Any] | None = None) -> Path:
        """Write it, with `config` and `shapes` laid over its own, and return its folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in (self.config | (config or {})).items() if value is not None}
        (self.folder / "config.json").write_text(json.dumps(kept))
        tensors = {
            name: np.zeros(shape, dtype=np.int64 if name in ("d2t", "t2d") else np.float16)
            for name, shape in (self.shapes | (shapes or {})).items()
            if shape is not None
        }
        save_file(tensors, self.folder / "model.safetensors")
        for name, text in self.files.items():
            (self.folder / name).write_text(text)
        return self.folder


@dataclass(frozen=True)
class Pair:
    """A target and a P-EAGLE head that fit each other, both not yet written."""

    target: FakeCheckpoint
    head: FakeCheckpoint

    def raw(self, **sections: Any) -> dict[str, Any]:
        """Write what is not yet written, and return a deployment of both as its file says it, with other `sections`."""
        for checkpoint in (self.target, self.head):
            if not checkpoint.folder.exists():
                checkpoint.write()
        drafter = {"source": str(self.head.folder), "trained_depth": 8}
        return {"name": "tiny", "target": {"source": str(self.target.folder)}, "drafter": drafter, **sections}

    def deployment(self, **drafter: Any) -> Deployment:
        """A deployment of both; `drafter` changes that section."""
        raw = self.raw()
        return parse_deployment(raw | {"drafter": raw["drafter"] | drafter}, origin="tiny.yaml")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """A target and a P-EAGLE head that fit each other."""
    target = FakeCheckpoint(
        tmp_path / "target",
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": HIDDEN,
            "vocab_size": VOCABULARY,
            "num_hidden_layers": LAYERS,
        },
        {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)},
        {"tokenizer.json": "{}"},
    )
    head = FakeCheckpoint(
        tmp_path / "p-eagle",
        {
            "architectures": ["LlamaForCausalLMEagle3"],
            "hidden_size": HIDDEN,
            "vocab_size": VOCABULARY,
            "draft_vocab_size": VOCABULARY,
            "num_hidden_layers": HEAD_LAYERS,
            "eagle_aux_hidden_state_layer_ids": TAPS,
            "ptd_token_id": 1,
            "trained_depth": 8,
        },
        {
            "fc.weight": (HIDDEN, 3 * HIDDEN),
            "mask_hidden": (1, 3 * HIDDEN),
            "embed_tokens.weight": (VOCABULARY, HIDDEN),
            "lm_head.weight": (VOCABULARY, HIDDEN),
            "layers.0.self_attn.q_proj.weight": (HIDDEN, 2 * HIDDEN),
            "layers.1.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            "norm.weight": (HIDDEN,),
        },
    )
    return Pair(target, head)


@pytest.fixture
def deployment_file(tmp_path: Path) -> Callable[[str], Path]:
    """Write text as a deployment file and return its path."""

    def write(text: str) -> Path:
        path = tmp_path / "model.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
