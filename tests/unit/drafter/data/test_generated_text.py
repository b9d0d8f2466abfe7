import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.drafter.data.generated_text import ANSWER_TOKENS_MIN, GeneratedText
from peagle.drafter.train.head_plan import HEAD_PLANS
from peagle.drafter.train.heads import rows_of_step
from peagle.drafter.train.record import check_record, learned_from, write_record
from peagle.drafter.train.training import CHECKPOINT, Rates
from peagle.errors import ConfigError

CORPUS = np.zeros(600, dtype=np.int32)


def text_of(prompt_tokens: int, tokens: int) -> GeneratedText:
    """Return rows of ones after a prompt of twos."""
    rows = np.ones((4, tokens), dtype=np.int32)
    rows[:, :prompt_tokens] = 2
    return GeneratedText(rows, np.full(4, prompt_tokens, dtype=np.int32))


def test_saved_text_is_loaded_unchanged(tmp_path: Path) -> None:
    text, path = text_of(3, 8), tmp_path / "a.name"
    text.save(path)
    loaded = GeneratedText.load(path)
    assert (loaded.tokens == text.tokens).all()
    assert (loaded.prompt_tokens == 3).all()


@pytest.mark.parametrize(
    ("tokens", "prompt_tokens"),
    [(np.array([["a", "b"]]), np.array([1])), (np.ones((1, 2), int), np.array([1.0])), (np.ones((1, 0), int), [0])],
)
def test_rows_that_are_not_tokens_are_refused(tokens: Any, prompt_tokens: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", tokens=tokens, prompt_tokens=prompt_tokens)
    with pytest.raises(ConfigError, match="generated"):
        GeneratedText.load(tmp_path / "rows.npz")


def test_a_folder_is_refused_as_generated_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not hold generated text"):
        GeneratedText.load(tmp_path)


@pytest.mark.parametrize("kind", ["text", "another array", "other lengths", "nothing"])
def test_a_file_of_something_else_is_named_with_the_command_that_writes_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "wrong.npz"
    with path.open("wb") as file:
        match kind:
            case "text":
                file.write(b"x = 1\n")
            case "another array":
                np.save(file, np.ones((3, 4)))
            case "other lengths":
                np.savez(file, tokens=np.ones((3, 4)), prompt_tokens=np.ones(2))
    with pytest.raises(ConfigError, match="peagle drafter generate"):
        GeneratedText.load(path)


@given(st.integers(1, 240), st.integers(0, 400))
def test_every_row_has_an_answer_and_knows_where_its_prompt_ends(prompt_tokens: int, step: int) -> None:
    for row in rows_of_step(text_of(prompt_tokens, 256), CORPUS, HEAD_PLANS["p-eagle"], step):
        assert (row.tokens[: row.prompt_tokens] != 1).all()
        answer = row.tokens[row.prompt_tokens :]
        assert len(answer) >= ANSWER_TOKENS_MIN
        assert len(set(answer.tolist())) == 1


def test_a_checkpoint_goes_on_only_by_the_plan_that_it_was_trained_with(tmp_path: Path) -> None:
    plan, learned = HEAD_PLANS["p-eagle"], {"target": "one"}
    write_record(tmp_path, plan, {"target": "another"})
    check_record(tmp_path, replace(plan, seed=12), learned)  # no checkpoint exists yet
    write_record(tmp_path, replace(plan, seed=12), learned)
    (tmp_path / CHECKPOINT).touch()
    check_record(tmp_path, replace(plan, seed=12, partitions=4, ngram_bias_nats=0.0), learned)
    with pytest.raises(ConfigError, match=r"seed = 11: the checkpoint in .* was trained with 12"):
        check_record(tmp_path, plan, learned)


def test_a_checkpoint_goes_on_only_from_what_it_was_trained_on(tmp_path: Path) -> None:
    target, plan = tmp_path / "target", HEAD_PLANS["p-eagle"]
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"one")
    text, corpus = text_of(8, 32), np.arange(40, dtype=np.int32)
    learned = learned_from(target, text, corpus, 1)
    write_record(tmp_path, plan, learned)
    (tmp_path / CHECKPOINT).touch()
    check_record(tmp_path, plan, learned_from(target, text_of(8, 32), corpus.copy(), 1))
    for name, other in {
        "generated": learned_from(target, text_of(9, 32), corpus, 1),
        "corpus": learned_from(target, text, corpus[1:], 1),
        "mask_token": learned_from(target, text, corpus, 0),
    }.items():
        with pytest.raises(ConfigError, match=rf"{name} = .*: the checkpoint in .* was trained with another"):
            check_record(tmp_path, plan, other)
    (target / "model.safetensors").write_bytes(b"two")
    with pytest.raises(ConfigError, match="target = "):
        check_record(tmp_path, plan, learned_from(target, text, corpus, 1))


@pytest.mark.parametrize(("steps", "at", "factor"), [(100, 0, 0.1), (100, 50, 1.0), (100, 90, 0.5), (15, 10, 1 / 3)])
def test_rates_warm_up_hold_and_fall_in_a_short_run_from_its_start(steps: int, at: int, factor: float) -> None:
    rates = Rates(matrix=1.0, other=1.0, warmup_steps=10, decay_steps=20)
    assert rates.factor_at(at, steps) == pytest.approx(factor)


def test_a_checkpoint_of_an_older_version_goes_on(tmp_path: Path) -> None:
    plan = HEAD_PLANS["p-eagle"]
    (tmp_path / "plan.json").write_text(json.dumps(asdict(plan)))
    (tmp_path / CHECKPOINT).touch()
    check_record(tmp_path, plan, {"target": "not written down"})
    write_record(tmp_path, plan, {"target": "not written down"})
    with pytest.raises(ConfigError, match="target = 'another'"):
        check_record(tmp_path, plan, {"target": "another"})
