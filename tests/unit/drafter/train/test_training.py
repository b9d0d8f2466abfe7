"""Real training runs at toy size, which resume exactly and export what vLLM expects."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from peagle.cli.main import app
from peagle.drafter.data.corpus import END_OF_TEXT, Corpus
from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.head_plan import HEAD_PLANS, HeadPlan
from peagle.drafter.train.heads import train_head
from peagle.drafter.train.prepare import Job, prepare
from peagle.drafter.train.pretrained import load_head
from peagle.drafter.train.target_training import Stage, TargetPlan, grown, train_target
from peagle.drafter.train.training import CHECKPOINT, Progress, Rates
from peagle.errors import ConfigError

RATES = Rates(matrix=2e-3, other=1e-3, warmup_steps=2, decay_steps=2)
PLAN = TargetPlan(
    vocab_size=300,
    hidden_size=64,
    mlp_size=64,
    head_size=32,
    context_tokens=32,
    sequence_tokens=16,
    batch_tokens=64,
    stages=(Stage(layers=2, steps=3), Stage(layers=4, steps=5)),
    rates=RATES,
)
CORPUS = Corpus(
    train=tuple(f"def f{i}(x):\n    return x + {i}\n" for i in range(80)), held_out=("x = 1\n" * 40,), source=""
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: several would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("target")
    torch.compiler.set_stance("force_eager")
    train_target(CORPUS, out, PLAN, ignore)
    return out


@dataclass(frozen=True)
class Trained:
    """A trained head, and the loss of each step."""

    folder: Path
    losses: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def trained(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Trained]:
    """Train heads by method and number of partitions."""
    found, folder = {}, tmp_path_factory.mktemp("heads")
    for method, partitions, name in (("p-eagle", 1, "p-eagle"), ("p-eagle", 3, "parts"), ("eagle3", 1, "eagle3")):
        found[method, partitions] = head = Trained(folder / name)
        run_head(target, head.folder, method, lambda each, to=head.losses: to.append(each.loss), partitions)
    return found


@pytest.fixture(scope="module")
def heads(trained: dict[tuple[str, int], Trained]) -> dict[str, Path]:
    """Return the folder of a trained head by method."""
    return {method: head.folder for (method, partitions), head in trained.items() if partitions == 1}


@pytest.fixture
def first(heads: dict[str, Path], tmp_path: Path) -> Path:
    """Copy a trained P-EAGLE head that a test may change."""
    return shutil.copytree(heads["p-eagle"], tmp_path / "first")


@pytest.fixture
def rows(tmp_path: Path) -> GeneratedText:
    """Return rows that are also in a file, `rows.npz`."""
    rows = GeneratedText(np.random.default_rng(1).integers(2, 300, (4, 24)).astype(np.int32), np.full(4, 8, np.int32))
    rows.save(tmp_path / "rows.npz")
    return rows


def ignore(_progress: Progress) -> None:
    pass


class KilledError(Exception):
    pass


def killed_at(step: int):  # type: ignore[no-untyped-def]
    def report(progress: Progress) -> None:
        if progress.step == step:
            raise KilledError

    return report


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found = load_file(folder / "model.safetensors")
    markov = folder / "markov_head" / "model.safetensors"
    return found | (load_file(markov) if markov.exists() else {})


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def head_plan(method: str, partitions: int) -> HeadPlan:
    return replace(
        HEAD_PLANS[method],
        trained_depth=4,
        tapped_layers=(1, 2, 3),
        tokens_per_step=96,
        steps=6,
        rates=RATES,
        partitions=partitions,
    )


def run_head(  # type: ignore[no-untyped-def]
    target: Path, out: Path, method: str, report=ignore, partitions: int = 1, **changed: Any
) -> None:
    draw = np.random.default_rng(0)
    generated = GeneratedText(draw.integers(2, 300, (8, 24)).astype(np.int32), draw.integers(4, 12, 8).astype(np.int32))
    corpus = draw.integers(2, 300, 500).astype(np.int32)
    plan = replace(head_plan(method, partitions), **changed)
    train_head(target, generated, corpus, 1, out, plan, report, checkpoint_every_steps=2)


def test_target_training_lowers_the_loss(tmp_path: Path) -> None:
    losses: list[float] = []
    train_target(CORPUS, tmp_path, replace(PLAN, stages=(Stage(4, 40),)), lambda progress: losses.append(progress.loss))
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5


def test_a_grown_model_answers_as_the_one_it_grew_from(target: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    tokens = torch.arange(2, 22)[None]
    deeper = grown(model, 6)
    assert deeper.config.num_hidden_layers == len(deeper.model.layers) == 6
    assert torch.allclose(deeper(tokens).logits, model(tokens).logits, atol=1e-5)
    with pytest.raises(ValueError, match="cannot grow to 3"):
        grown(model, 3)


@pytest.mark.parametrize("step", [3, 4, 7], ids=["first stage", "its end", "second stage"])
def test_killed_target_training_ends_where_an_uninterrupted_one_does(target: Path, tmp_path: Path, step: int) -> None:
    with pytest.raises(KilledError):
        train_target(CORPUS, tmp_path, PLAN, killed_at(step), checkpoint_every_steps=2)
    assert (tmp_path / CHECKPOINT).exists()
    assert not (tmp_path / "model.safetensors").exists()
    train_target(CORPUS, tmp_path, PLAN, ignore, checkpoint_every_steps=2)
    assert_same(weights(tmp_path), weights(target))


@pytest.mark.parametrize(("method", "partitions"), [("p-eagle", 1), ("p-eagle", 3), ("eagle3", 1)])
def test_killed_head_training_ends_where_an_uninterrupted_one_does(
    target: Path, trained: dict[tuple[str, int], Trained], tmp_path: Path, method: str, partitions: int
) -> None:
    with pytest.raises(KilledError):
        run_head(target, tmp_path, method, killed_at(3), partitions)
    run_head(target, tmp_path, method, partitions=partitions)
    assert_same(weights(tmp_path), weights(trained[method, partitions].folder))


def test_partitions_change_neither_what_is_sampled_nor_what_is_learned(
    trained: dict[tuple[str, int], Trained],
) -> None:
    whole, parts = trained["p-eagle", 1], trained["p-eagle", 3]
    assert len(whole.losses) == 6
    assert parts.losses == pytest.approx(whole.losses, rel=1e-2)  # in bfloat16


@pytest.mark.parametrize(("method", "has_mask"), [("p-eagle", True), ("eagle3", False)])
def test_exported_head_has_the_shapes_that_vllm_loads(heads: dict[str, Path], method: str, has_mask: bool) -> None:
    head = heads[method]
    with safe_open(head / "model.safetensors", "pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert shapes["fc.weight"] == (64, 3 * 64)
    assert shapes["layers.0.self_attn.q_proj.weight"] == (64, 2 * 64)
    assert shapes["lm_head.weight"] == (300, 64)
    assert ("mask_hidden" in shapes) is has_mask
    assert not any("markov" in name for name in shapes)
    assert ("markov_w1.weight" in weights(head)) is has_mask
    config = json.loads((head / "config.json").read_text())
    assert ("markov_rank" in config) is ("ngram_bias_nats" in config) is has_mask
    assert not any(name.startswith("verifier") for name in shapes)


@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_a_head_goes_on_from_the_weights_of_another(
    target: Path, heads: dict[str, Path], rows: GeneratedText, tmp_path: Path, method: str
) -> None:
    still = replace(RATES, matrix=0.0, other=0.0)
    plan = replace(head_plan(method, 1), steps=1, generated_ratio=1.0, rates=still, start=str(heads[method]))
    job = Job(target, tmp_path / "rows.npz", tmp_path / "second", plan, corpus=None)
    material = prepare(job)
    assert material.start is not None
    with pytest.raises(ValueError, match="the plan starts from"):
        train_head(target, rows, material.corpus, material.mask_token, job.out, plan, ignore)
    train_head(target, rows, material.corpus, material.mask_token, job.out, plan, ignore, start=material.start)
    assert_same(weights(tmp_path / "second"), weights(heads[method]))


@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_a_head_that_training_cannot_start_from_is_named(
    target: Path, heads: dict[str, Path], rows: GeneratedText, tmp_path: Path, method: str
) -> None:
    plan = replace(head_plan(method, 1), generated_ratio=1.0, start=str(heads[method]))
    job = Job(target, tmp_path / "rows.npz", tmp_path / "second", plan, corpus=None)
    with pytest.raises(ConfigError) as caught:
        prepare(replace(job, plan=replace(plan, layers=5, trained_depth=5, tapped_layers=(0, 1, 3))))
    for name in ("layers", "trained_depth", "tapped_layers"):
        assert f"head.{name} = " in str(caught.value)
    with pytest.raises(ConfigError, match=r"head\.start = .*training would overwrite"):
        prepare(replace(job, out=heads["eagle3"] / ".." / method))
    with pytest.raises(ConfigError, match=r"head\.start = .*nowhere(.|\n)*that `peagle drafter train` wrote"):
        prepare(replace(job, plan=replace(plan, start=str(tmp_path / "nowhere"))))
    if method == "p-eagle":
        with pytest.raises(ConfigError, match=r"head\.mask_token = 0: the head in .*p-eagle has 1"):
            prepare(replace(job, mask_token=END_OF_TEXT))


def test_a_head_without_a_markov_head_is_given_one_and_none_loses_its_own(
    target: Path, rows: GeneratedText, tmp_path: Path
) -> None:
    run_head(target, tmp_path / "without", "p-eagle", markov_rank=0)
    assert not (tmp_path / "without" / "markov_head").exists()
    plan = replace(head_plan("p-eagle", 1), steps=3, generated_ratio=1.0, start=str(tmp_path / "without"))
    job = Job(target, tmp_path / "rows.npz", tmp_path / "with", plan, corpus=None)
    material = prepare(job)
    train_head(target, rows, material.corpus, 1, job.out, plan, ignore, start=material.start)
    assert weights(tmp_path / "with")["markov_w2.weight"].any()
    frozen = replace(plan, frozen=True)
    train_head(target, rows, material.corpus, 1, tmp_path / "frozen", frozen, ignore, start=material.start)
    before, after = weights(tmp_path / "without"), weights(tmp_path / "frozen")
    assert after["markov_w2.weight"].any()
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["lm_head.weight"]
    plan = replace(plan, markov_rank=8, start=str(tmp_path / "with"))
    with pytest.raises(ConfigError, match=r"head\.markov_rank = 8: the head in .* has 128"):
        prepare(replace(job, plan=plan, out=tmp_path / "third"))


@pytest.mark.usefixtures("rows")
def test_a_start_head_defines_the_shape(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.drafter.train.prepare.standard_library", lambda: CORPUS)
    run_head(target, tmp_path / "first", "p-eagle", markov_rank=8)
    command = ["drafter", "train", target, tmp_path / "rows.npz", "--start", tmp_path / "first", "--steps", 1]
    result = CliRunner().invoke(app, [*map(str, command), "--out", str(tmp_path / "second")])
    assert result.exit_code == 0, result.output
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("first", "second"))
    assert first == second
    assert first["ngram_bias_nats"] == head_plan("p-eagle", 1).ngram_bias_nats > 0
    assert (first["markov_rank"], first["trained_depth"]) == (8, head_plan("p-eagle", 1).trained_depth)
    result = CliRunner().invoke(app, [*map(str, command[:-3]), str(tmp_path), "--out", str(tmp_path / "third")])
    assert result.exit_code != 0
    assert "--start" in str(result.exception)


def test_a_record_that_cannot_be_read_is_named(target: Path, tmp_path: Path) -> None:
    with pytest.raises(KilledError):
        run_head(target, tmp_path, "p-eagle", killed_at(3))
    assert not list(tmp_path.glob("*.partial"))
    (tmp_path / "plan.json").write_text("")
    with pytest.raises(ConfigError, match=r"plan\.json.*the record of the checkpoint"):
        run_head(target, tmp_path, "p-eagle")


@pytest.mark.parametrize("file", ["model.safetensors", "markov_head/model.safetensors"])
def test_a_head_whose_weights_are_in_another_file_is_named(target: Path, first: Path, file: str) -> None:
    (first / file).rename(first / file.replace("model", "other"))
    with pytest.raises(ConfigError, match=r"model\.safetensors.*there is no such file"):
        load_head(target, first)


def test_a_killed_training_goes_on_without_the_head_it_started_from(
    target: Path, first: Path, rows: GeneratedText, tmp_path: Path
) -> None:
    plan = replace(head_plan("p-eagle", 1), generated_ratio=1.0, start=str(first))
    for out, kill in (("whole", None), ("killed", 3)):
        job = Job(target, tmp_path / "rows.npz", tmp_path / out, plan, corpus=None)
        material = prepare(job)
        parts = (target, rows, material.corpus, material.mask_token, job.out, plan)
        if kill is None:
            train_head(*parts, ignore, checkpoint_every_steps=2, start=material.start)
            continue
        with pytest.raises(KilledError):
            train_head(*parts, killed_at(kill), checkpoint_every_steps=2, start=material.start)
        first.rename(tmp_path / "gone")
        material = prepare(job)
        assert material.start is None
        train_head(*parts, ignore, checkpoint_every_steps=2, start=material.start)
    assert_same(weights(tmp_path / "killed"), weights(tmp_path / "whole"))
