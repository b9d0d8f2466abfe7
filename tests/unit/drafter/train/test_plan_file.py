"""Plan files of `peagle drafter train`: how they are read, and errors with field, value and fix."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.head_plan import HEAD_PLANS, HeadPlan
from peagle.drafter.train.plan_file import TrainingFile, load_training
from peagle.drafter.train.prepare import Job, prepare
from peagle.drafter.train.readiness import TargetShape, check_training, peak_bytes
from peagle.errors import ConfigError
from support.paths import EMBEDDED

EXAMPLE = EMBEDDED / "p-eagle-training.yaml"
SHAPE = TargetShape(24, 192, 512, 2048, 44_000_000, 1024, 2048)
PLAN = HEAD_PLANS["p-eagle"]
GIB = 2**30


def text_of(rows: int = 4, tokens: int = 256, prompt_tokens: int = 100, token: int = 7) -> GeneratedText:
    return GeneratedText(np.full((rows, tokens), token, np.int32), np.full(rows, prompt_tokens, np.int32))


def write(folder: Path, **changes: Any) -> Path:
    """Write the example with a target folder and rows, and `changes` to its fields, given as `section__field`."""
    (folder / "target").mkdir()
    text_of().save(folder / "generated.npz")
    raw = yaml.safe_load(EXAMPLE.read_text())
    for place, value in changes.items():
        *sections, name = place.split("__")
        holder = raw
        for section in sections:
            holder = holder[section]
        holder[name] = value
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_the_example_says_what_the_trainer_does_by_default(tmp_path: Path) -> None:
    file = load_training(write(tmp_path))
    assert replace(file.plan, tapped_layers=None) == PLAN
    assert file.plan.tapped_layers == (2, 12, 23)
    assert Job.of(file).target == tmp_path / "target"
    assert Job.of(file).out == tmp_path / "p-eagle"


def test_the_example_of_a_markov_head_is_a_plan() -> None:
    raw = yaml.safe_load(EXAMPLE.with_name("markov-head-training.yaml").read_text())
    plan = TrainingFile.model_validate(raw).plan
    assert (plan.frozen, plan.start, plan.markov_rank) == (True, "./p-eagle", PLAN.markov_rank)


def test_the_settings_of_a_file_are_used_for_training(tmp_path: Path) -> None:
    (tmp_path / "head").mkdir()
    file = load_training(write(tmp_path, head__start="./head", training__confidence_floor=0.25, training__seed=3))
    assert (file.plan.start, file.plan.confidence_floor, file.plan.seed) == (str(tmp_path / "head"), 0.25, 3)
    path = tmp_path / "plan.yaml"
    path.write_text(path.read_text().replace("confidence_floor: 0.25", "confidence_floor: null"))
    assert load_training(path).plan.confidence_floor is None


def test_a_short_file_takes_the_defaults_of_its_method() -> None:
    for method, plan in HEAD_PLANS.items():
        raw = {"target": "t", "out": "o", "text": {"generated": "g"}, "head": {"method": method}}
        assert TrainingFile.model_validate(raw).plan == plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head__method": "eagle2"}, r"head\.method = 'eagle2': it must be 'p-eagle' or 'eagle3'"),
        ({"training__step": 5}, r"training\.step = 5: there is no such field\. Did you mean steps\?"),
        ({"training__partitions": 0}, r"training\.partitions = 0: it must be at least 1"),
        (
            {
                "head__method": "eagle3",
                "head__markov_rank": 0,
                "head__ngram_bias_nats": 0,
                "training__partitions": 2,
            },
            r"training\.partitions = 2: eagle3 .*Write 1",
        ),
        ({"head__method": "eagle3"}, r"head\.markov_rank = 128: eagle3 .*Remove it"),
        ({"head__markov_rank": 0}, r"head\.ngram_bias_nats = 0\.85: n-grams only affect drafts .*Remove it"),
        ({"head__ngram_bias_nats": 11}, r"head\.ngram_bias_nats = 11: it must be at most 10"),
        ({"head__frozen": True}, r"head\.frozen = True: it trains only .*Name the head as start"),
        ({"text__corpus": None}, r"text\.generated_ratio = 0\.8: there is no corpus"),
        ({"text__corpus": "./no.txt"}, r"text\.corpus = './no\.txt': there is no such file"),
        ({"head__start": "./nowhere"}, r"head\.start = './nowhere': there is no such folder"),
        ({"target": "./nowhere"}, r"target = './nowhere': there is no such folder"),
        ({"out": "~nobody-of-this-name/head"}, r"out = '~nobody-of-this-name/head': it is not a path"),
        ({"training__depth_ratio": "much"}, r"training\.depth_ratio = 'much': it must be a number"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_the_fix(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_training(write(tmp_path, **change))
    assert str(caught.value).startswith(str(tmp_path / "plan.yaml"))


def complaints(
    plan: HeadPlan = PLAN,
    shape: TargetShape = SHAPE,
    text: GeneratedText | None = None,
    corpus_tokens: int = 5000,
    mask_token: int | None = 1,
    memory_bytes: int = 64 * GIB,
) -> str:
    corpus = np.full(corpus_tokens, 9, np.int32)
    try:
        check_training(plan, shape, text_of() if text is None else text, corpus, mask_token, memory_bytes)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_training_that_can_work_is_let_through() -> None:
    assert not complaints()
    assert not complaints(HEAD_PLANS["eagle3"], mask_token=None)


def test_a_training_that_cannot_work_is_refused_before_the_long_part() -> None:
    assert "need rows of 16 tokens" in complaints(text=text_of(tokens=12, prompt_tokens=2))
    assert "training.crop_tokens = 12" in complaints(replace(PLAN, crop_tokens=12))
    assert "Write 16 or more" in complaints(replace(PLAN, crop_tokens=12))
    assert "has no answer" in complaints(text=text_of(prompt_tokens=250))
    assert "= 2048: the target's tokens go from 0 to 2047" in complaints(text=text_of(token=2048))
    assert "longer than the target's context" in complaints(text=text_of(tokens=2000))
    assert "more tokens than the target's vocabulary" in complaints(shape=replace(SHAPE, tokenizer_tokens=3000))
    assert "text.corpus = 256" in complaints(corpus_tokens=256)
    assert "head.mask_token: the tokenizer has no such token" in complaints(mask_token=None)
    assert "generated text contains it 1024 times" in complaints(mask_token=7)
    assert "corpus contains it 5000 times" in complaints(mask_token=9)
    assert "three different layers" in complaints(replace(PLAN, tapped_layers=(2, 2, 3)))
    assert "from 0 to 23" in complaints(replace(PLAN, tapped_layers=(2, 3, 24)))
    # When served, the fusing matrix would receive each layer's states in another layer's place.
    assert "Write [2, 12, 23]." in complaints(replace(PLAN, tapped_layers=(23, 12, 2)))
    assert "too shallow" in complaints(shape=replace(SHAPE, layers=4))


def test_a_resumed_training_does_not_need_its_start_head(tmp_path: Path) -> None:
    path = write(tmp_path, head__start="./gone", out="./out")
    with pytest.raises(ConfigError, match=r"head\.start = '\./gone': there is no such folder"):
        load_training(path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoint.pt").touch()
    assert load_training(path).plan.start == str(tmp_path / "gone")


def test_everything_wrong_is_named_at_once() -> None:
    found = complaints(replace(PLAN, tapped_layers=(2, 2, 3)), text=text_of(token=2048), mask_token=None)
    assert len(found.splitlines()) == 3


def test_a_row_that_does_not_fit_is_told_how_many_partitions_would() -> None:
    shape, text = replace(SHAPE, context_tokens=8192), text_of(tokens=4096)
    assert peak_bytes(PLAN, shape, 4096) > 3 * peak_bytes(PLAN, shape, 4096, partitions=8)
    found = complaints(shape=shape, text=text, memory_bytes=2 * GIB)
    assert "training.partitions = 1: a row of 4096 tokens takes about" in found
    wanted = int(found.partition("Write ")[2].partition(",")[0])
    assert not complaints(replace(PLAN, partitions=wanted), shape=shape, text=text, memory_bytes=2 * GIB)


def test_the_embedded_target_is_ready_for_its_head(tmp_path: Path) -> None:
    text_of().save(tmp_path / "generated.npz")
    (tmp_path / "text.txt").write_text("def add(a, b):\n    return a + b\n" * 200)
    job = Job(EMBEDDED / "target", tmp_path / "generated.npz", tmp_path / "out", PLAN, str(tmp_path / "text.txt"))
    material = prepare(job)
    assert material.mask_token == 1
    assert len(material.corpus) > 1000
    with pytest.raises(ConfigError, match="no such token"):
        prepare(replace(job, mask_token="<|nothing|>"))
