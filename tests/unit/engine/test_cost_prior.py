"""The source of the step-time prior; a stand-in for something unknown is reported with its field and the fix."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.config import Deployment, load_deployment, parse_deployment
from peagle.engine.cost_prior import PARTS, STAND_IN_DEVICE, STAND_IN_TARGET, cost_prior
from peagle.metrics import PART
from peagle.router.depth import DEVICES, EMBEDDED_CPU, TARGETS, cpu_prior, roofline_prior, target_size
from support.paths import DEPLOYMENTS

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
STAND_IN = roofline_prior(TARGETS[STAND_IN_TARGET], DEVICES[STAND_IN_DEVICE])


def deployment(source: str, **more: Any) -> Deployment:
    raw = {"name": "m", "target": {"source": source}, "speculation": {"enabled": False}, **more}
    return parse_deployment(raw, origin="m.yaml", base=Path.cwd())


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(
    ("recipe", "target"),
    [
        ("gpt-oss-20b", "gpt-oss-20b"),
        ("gpt-oss-120b", "gpt-oss-120b"),
        ("qwen3-coder-30b-a3b", "qwen3-coder-30b-a3b"),
        ("gemma-4-31b", "gemma-4-31b"),
    ],
)
def test_recipes_for_gpus_begin_from_the_table(recipe: str, target: str) -> None:
    found = cost_prior(load_deployment(DEPLOYMENTS / f"{recipe}.yaml"))
    assert found.cost == roofline_prior(TARGETS[target], DEVICES["B200"])
    assert found.stand_ins == {}


@pytest.mark.parametrize("recipe", ["embedded", "embedded-eagle3"])
def test_the_embedded_model_begins_from_what_was_measured_of_it(recipe: str) -> None:
    found = cost_prior(load_deployment(DEPLOYMENTS / f"{recipe}.yaml"))
    assert found.cost == EMBEDDED_CPU
    assert found.stand_ins == {}


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"accelerator_type": "L40S"}, roofline_prior(target_size(LLAMA), DEVICES["L40S"])),
        (
            {"accelerator_type": "H100", "tensor_parallel_size": 2},
            roofline_prior(target_size(LLAMA), DEVICES["H100"], 2),
        ),
        ({"accelerator": "cpu", "cpus": 4}, cpu_prior(target_size(LLAMA), 4)),
        ({"accelerator": "cpu", "cpus": 0.5}, cpu_prior(target_size(LLAMA), 1)),
    ],
)
def test_the_size_in_a_folder_is_used(tmp_path: Path, resources: dict[str, Any], expected: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    found = cost_prior(deployment(str(tmp_path), resources=resources))
    assert (found.cost, found.stand_ins) == (expected, {})
    assert "config.json" in found.basis


def test_what_the_engine_computes_in_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    resources = {"accelerator_type": "H200"}
    plain, doubled, eight_bit = (
        cost_prior(deployment(str(tmp_path), resources=resources, engine=engine)).cost.weights_s
        for engine in ({}, {"dtype": "float32"}, {"quantization": "fp8"})
    )
    assert doubled == 2 * plain
    assert eight_bit < 0.6 * plain


def test_an_argument_of_the_engine_that_makes_the_size_unknown_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    found = cost_prior(deployment(str(tmp_path), engine={"quantization": "awq"}))
    assert found.stand_ins["target"].field == "engine.quantization"


def test_a_repository_in_hugging_face_s_cache_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None
) -> None:
    commit = "c" * 40
    stored = tmp_path / "models--org--model"
    (stored / "snapshots" / commit).mkdir(parents=True)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(commit, encoding="utf-8")
    (stored / "snapshots" / commit / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    found = cost_prior(deployment("org/model", resources={"accelerator_type": "H200"}))
    assert found.cost == roofline_prior(target_size(LLAMA), DEVICES["H200"])
    assert found.stand_ins == {}


def test_an_unknown_repository_gets_a_named_stand_in(offline: None) -> None:
    found = cost_prior(deployment("org/unheard-of", resources={"accelerator_type": "B200"}))
    assert found.cost == STAND_IN
    assert found.assumed == {"target": 1, "device": 0}
    message = str(found.stand_ins["target"])
    assert message.startswith("target.source = 'org/unheard-of': its size is unknown")
    assert "gpt-oss-20b's size stands in. " in message
    assert "calibration_s" in message


def test_without_hugging_face_s_library_a_repository_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert cost_prior(deployment("org/model")).assumed["target"] == 1


@pytest.mark.parametrize(
    ("kind", "why", "fix"),
    [
        (None, "no GPU is named", "Write one of A10, A10G, L4, "),
        ("MXC500", "its speed is unknown", "Keep speculation.calibration_s above 0"),
    ],
)
def test_an_unknown_gpu_gets_a_named_stand_in(kind: str | None, why: str, fix: str) -> None:
    found = cost_prior(deployment("openai/gpt-oss-20b", resources={"accelerator_type": kind}))
    assert found.cost == STAND_IN
    assert found.assumed == {"target": 0, "device": 1}
    message = str(found.stand_ins["device"])
    assert message.startswith("resources.accelerator_type")
    assert f"{why}, so a B200's speed stands in. {fix}" in message


def test_on_a_cpu_the_embedded_model_stands_in() -> None:
    found = cost_prior(deployment("org/unheard-of", resources={"accelerator": "cpu"}))
    assert found.cost == EMBEDDED_CPU
    assert found.assumed == {"target": 1, "device": 0}
    assert "the embedded model's size stands in" in str(found.stand_ins["target"])


def _missing(folder: Path) -> None:
    folder.rmdir()


def _written(content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "config.json").write_bytes(content)

    return write


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_missing, "there is no such folder"),
        (lambda folder: None, "there is no such file"),
        (lambda folder: (folder / "config.json").mkdir(), "it cannot be read"),
        (_written(b""), "it is not JSON"),
        (_written(b"\xff\xfe{}"), "it is not JSON"),
        (_written(b"[" * 100_000), "it is not JSON"),
        (_written(b"[]"), "it holds a list"),
        (_written(b"{}"), "its layers are unknown"),
        (_written(json.dumps({**LLAMA, "hidden_size": 1e300}).encode()), "it must be a whole number"),
        (_written(json.dumps({**LLAMA, "text_config": 5, "vocab_size": None}).encode()), "it is required"),
        (_written(b'{"model_type": "llama", "hidden_size": ' + b"9" * 10_000 + b"}"), "it is not JSON"),
    ],
)
def test_a_folder_with_a_bad_config_gets_a_stand_in(tmp_path: Path, spoil: Callable[[Path], None], why: str) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    spoil(folder)
    found = cost_prior(deployment(str(folder), resources={"accelerator_type": "B200"}))
    assert found.cost == STAND_IN
    message = str(found.stand_ins["target"])
    assert message.startswith("target.source")
    assert why in message
    assert "gpt-oss-20b's size stands in" in message


def test_the_metric_has_the_parts_that_may_be_unknown() -> None:
    assert PART.values == set(PARTS)
