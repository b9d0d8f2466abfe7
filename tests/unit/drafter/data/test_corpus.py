from pathlib import Path

import numpy as np
import pytest

from peagle.drafter.data.corpus import (
    END_OF_TEXT,
    SPECIAL_TOKENS,
    special_id,
    standard_library,
    token_stream,
    train_tokenizer,
)
from peagle.drafter.data.generation import loops
from peagle.drafter.data.held_out_prompts import held_out_prompts
from peagle.drafter.train.head_plan import tapped_layers_of
from peagle.errors import ConfigError

TEXTS = ("def add(a, b):\n    return a + b\n", "class Empty:\n    pass\n")


def test_corpus_holds_library_code_without_generated_tables() -> None:
    corpus = standard_library()
    assert any("class Path" in text for text in corpus.train + corpus.held_out)
    assert not any("decoding_table = (" in text for text in corpus.train)
    assert 0.02 < len(corpus.held_out) / len(corpus.train) < 0.12


def test_split_depends_on_file_names_only(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"m{number}.py").write_text(f"x = {number}\n")
    first = standard_library(tmp_path)
    (tmp_path / "a_new_first_file.py").write_text("y = 1\n")
    second = standard_library(tmp_path)
    assert set(first.train) <= set(second.train)
    assert set(first.held_out) <= set(second.held_out)
    assert not set(first.train) & set(first.held_out)


def test_folder_without_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Python source"):
        standard_library(tmp_path)


def test_token_stream_gives_the_text_back_and_ends_each_text() -> None:
    tokenizer = train_tokenizer(TEXTS, 300)
    stream = token_stream(tokenizer, TEXTS)
    assert stream.dtype == np.int32
    assert int((stream == special_id(tokenizer, END_OF_TEXT)).sum()) == len(TEXTS)
    assert tokenizer.decode(stream.tolist(), skip_special_tokens=True) == "".join(TEXTS)
    assert [special_id(tokenizer, token) for token in SPECIAL_TOKENS] == [0, 1]


def test_missing_special_token_is_named() -> None:
    with pytest.raises(ConfigError, match=r"<\|nothing\|>"):
        special_id(train_tokenizer(TEXTS, 300), "<|nothing|>")


def test_held_out_prompts_end_where_a_function_body_begins() -> None:
    prompts = held_out_prompts(standard_library(), 64)
    assert len(set(prompts)) == 64
    assert all(prompt.endswith(":") and "def " in prompt.splitlines()[-1] for prompt in prompts)


def test_a_shallow_target_is_refused_with_its_depth() -> None:
    assert tapped_layers_of(6) == (2, 3, 5)
    with pytest.raises(ConfigError, match=r"target\.num_hidden_layers = 5: .*at least 6 layers"):
        tapped_layers_of(5)


def test_more_prompts_than_functions_is_refused(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"m{number}.py").write_text("x = 1\n" * 20 + "def f():\n    pass\n")
    with pytest.raises(ConfigError, match="only"):
        held_out_prompts(standard_library(tmp_path), 500)


@pytest.mark.parametrize(
    ("tokens", "looping"),
    [(list(range(200)), False), ([1, 2, 3] * 60, True), ([*range(150), *range(40)], False), ([5] * 5, False)],
)
def test_looping_text_is_told_from_text_that_repeats_a_little(tokens: list[int], looping: bool) -> None:
    assert loops(tokens) is looping
