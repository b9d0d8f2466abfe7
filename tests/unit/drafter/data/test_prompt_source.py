"""Custom prompts: what the target is asked, which answers become rows, and that padding has no effect."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer

from peagle.drafter.data.corpus import read_tokenizer
from peagle.drafter.data.generated_text import ANSWER_TOKENS_MIN, GeneratedText
from peagle.drafter.data.generation import rows_of
from peagle.drafter.data.prompt_source import Asked, GenerationPlan, ask, lines, windows
from peagle.drafter.train.head_plan import HEAD_PLANS, HeadPlan
from peagle.drafter.train.heads import TargetTap, backward, make_head, rows_of_step
from peagle.drafter.train.readiness import TargetShape, check_training
from peagle.drafter.train.record import learned_from
from peagle.errors import ConfigError
from support.paths import EMBEDDED

TARGET = EMBEDDED / "target"
SHAPE = TargetShape(24, 192, 512, 2048, 11_000_000, 1024, 2048)
PLAN = HEAD_PLANS["p-eagle"]
CORPUS = np.full(600, 9, dtype=np.int32)
TAPS = (2, 12, 23)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return read_tokenizer(TARGET)


@pytest.fixture(scope="module")
def chats() -> Any:
    """Return the target's tokenizer with its chat template."""
    return AutoTokenizer.from_pretrained(TARGET)


def write(path: Path, *prompts: Any) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in prompts))
    return path


def numbered(folder: Path, count: int) -> Path:
    return write(folder / "p.jsonl", *({"prompt": f"x = {number}"} for number in range(count)))


def test_texts_and_chats_are_asked_as_they_are(tmp_path: Path, chats: Any, tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "import os"}]
    path = write(tmp_path / "p.jsonl", {"prompt": "x = 1"}, {"messages": messages})
    asked = ask(TARGET, tokenizer, GenerationPlan(), path)
    text, chat = chats.encode("x = 1"), chats.encode("import os\n")
    assert sorted(asked.prompts) == sorted([text, chat])
    assert (asked.ends, asked.too_long) == (True, 0)
    asked = ask(TARGET, tokenizer, GenerationPlan(), path, as_chat=True)
    assert sorted(asked.prompts) == sorted([chats.encode("x = 1\n"), chat])


def test_prompts_are_shuffled_by_the_seed_and_cut(tmp_path: Path, chats: Any) -> None:
    path, plan = numbered(tmp_path, 40), GenerationPlan(prompts=30)
    first = lines(path, chats, plan, as_chat=False)
    assert len(first.prompts) == len(first.greedy) == 30
    again, other = (lines(path, chats, replace(plan, seed=seed), as_chat=False) for seed in (plan.seed, 8))
    assert again.prompts == first.prompts
    assert (again.greedy == first.greedy).all()
    assert other.prompts != first.prompts
    assert lines(path, chats, replace(plan, greedy_ratio=1.0), as_chat=False).greedy.all()


def test_a_prompt_without_room_for_an_answer_is_left_out_and_counted(tmp_path: Path, chats: Any) -> None:
    short, long = "x = 1", "y = 2\n" * 40
    path = write(tmp_path / "p.jsonl", {"prompt": long}, {"prompt": short}, {"prompt": long})
    asked = lines(path, chats, GenerationPlan(row_tokens=32), as_chat=False)
    assert (asked.prompts, asked.too_long) == ([chats.encode(short)], 2)
    needed = len(chats.encode(long)) + ANSWER_TOKENS_MIN
    path = write(tmp_path / "p.jsonl", {"prompt": long})
    with pytest.raises(ConfigError, match=rf"--prompts-from = .*no room.*Raise --row-tokens to {needed} or more"):
        lines(path, chats, GenerationPlan(row_tokens=needed - 1), as_chat=False)
    assert lines(path, chats, GenerationPlan(row_tokens=needed), as_chat=False).too_long == 0


def test_windows_are_those_that_rows_of_256_tokens_always_had() -> None:
    tokens, plan = np.arange(4000, dtype=np.int32), GenerationPlan(prompts=50)
    draw = np.random.default_rng(plan.seed)
    lengths, starts = draw.integers(136, 184, 50), draw.integers(0, len(tokens) - 184, 50)
    greedy = draw.random(50) < 0.95
    asked = windows(tokens, plan)
    assert [(prompt[0], len(prompt)) for prompt in asked.prompts] == list(zip(starts, lengths, strict=True))
    assert (asked.greedy == greedy).all()
    assert not asked.ends
    for row_tokens in (32, 1000):
        sizes = [len(prompt) for prompt in windows(tokens, replace(plan, row_tokens=row_tokens)).prompts]
        assert row_tokens // 2 <= min(sizes) <= max(sizes) <= row_tokens - ANSWER_TOKENS_MIN


def test_a_custom_text_is_continued_in_windows(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "text.md"
    path.write_text("".join(f"line {number}\n" for number in range(200)))
    asked = ask(TARGET, tokenizer, GenerationPlan(prompts=3), path)
    assert not asked.ends
    assert all(tokenizer.decode(prompt) in path.read_text() for prompt in asked.prompts)


@pytest.mark.parametrize(
    ("content", "as_chat", "message"),
    [
        (b"too short", False, r"--prompts-from = \d+: .*no windows.*lower --row-tokens"),
        (b"\xff" * 999, False, r"--prompts-from = .*byte 0 is not UTF-8"),
        (None, False, r"--prompts-from = .*it cannot be read"),
        (b"text " * 999, True, r"--chat = .*only prompts of a \.jsonl"),
    ],
)
def test_text_that_cannot_be_continued_is_named(
    tmp_path: Path, tokenizer: Tokenizer, content: bytes | None, as_chat: bool, message: str
) -> None:
    path = tmp_path / "text.md"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        ask(TARGET, tokenizer, GenerationPlan(), path, as_chat=as_chat)


def test_a_target_with_another_end_of_text_is_asked_for_prompts(tokenizer: Tokenizer) -> None:
    raw = json.loads(tokenizer.to_str().replace("<|endoftext|>", "<|end|>"))
    with pytest.raises(ConfigError, match=r"--prompts-from: .*no <\|endoftext\|>.*Name a \.jsonl"):
        ask(TARGET, Tokenizer.from_str(json.dumps(raw)), GenerationPlan())


def test_rows_longer_than_the_context_are_refused() -> None:
    GenerationPlan(row_tokens=1024).check(1024)
    with pytest.raises(ConfigError, match=r"--row-tokens = 1025: .*1024 tokens\. Write 1024 or fewer"):
        GenerationPlan(row_tokens=1025).check(1024)


def test_a_row_ends_with_its_answer() -> None:
    prompts = [[1, 2], [3], [4], [5, 6, 7]]
    answers = [list(range(10, 30)), [1] * (ANSWER_TOKENS_MIN - 1), [8] * 40, list(range(40, 49))]
    text, left_out = rows_of(Asked(prompts, np.ones(4, bool), True, too_long=5), answers, 0.6)
    assert [row.tolist() for row, _ in text.rows()] == [[1, 2, *range(10, 30)], [5, 6, 7, *range(40, 49)]]
    assert text.prompt_tokens.tolist() == [2, 3]
    assert text.lengths is not None
    assert text.lengths.tolist() == [22, 12]
    assert text.tokens.shape == (2, 22)
    assert len(text.written) == 34
    assert (left_out.too_long, left_out.loops, left_out.too_short) == (5, 1, 1)
    assert str(left_out).startswith("5 with a prompt too long for a row, 1 with an answer that repeats itself, 1 with")
    with pytest.raises(ConfigError, match=r"prompts = 1: no row is left: 1 with an answer that repeats itself"):
        rows_of(Asked(prompts[:1], np.ones(1, bool), True), [[8] * 40], 0.6)


def padded(padding: int, dtype: type = np.int32) -> GeneratedText:
    """Return four rows of 24, 12, 40 and 30 tokens after prompts of 4, padded to 48."""
    rows = np.random.default_rng(5).integers(10, 2048, (4, 48)).astype(np.int32)
    lengths = np.array([24, 12, 40, 30], dtype)
    for row, length in zip(rows, lengths, strict=True):
        row[int(length) :] = padding
    return GeneratedText(rows, np.full(4, 4, np.int32), lengths)


def test_lengths_are_saved_and_loaded(tmp_path: Path) -> None:
    text, path = padded(0), tmp_path / "rows.npz"
    text.save(path)
    loaded = GeneratedText.load(path)
    assert loaded.row_lengths.tolist() == [24, 12, 40, 30]
    assert [len(row) for row, _ in loaded.first(2).rows()] == [24, 12]
    assert learned_from(TARGET, loaded, CORPUS, 1) == learned_from(TARGET, text, CORPUS, 1)
    full = GeneratedText(text.tokens, text.prompt_tokens)
    assert learned_from(TARGET, full, CORPUS, 1) != learned_from(TARGET, text, CORPUS, 1)
    full.save(path)
    assert GeneratedText.load(path).lengths is None
    assert full.row_lengths.tolist() == [48] * 4
    assert len(full.written) == 4 * 48


@pytest.mark.parametrize("lengths", [[24, 12, 40], [24, 12, 49, 3], [24, 0, 40, 3], [1.5, 2.0, 3.0, 4.0]])
def test_lengths_of_other_rows_are_refused(tmp_path: Path, lengths: list[float]) -> None:
    text = padded(0)
    GeneratedText(text.tokens, text.prompt_tokens, np.asarray(lengths)).save(tmp_path / "rows.npz")
    with pytest.raises(ConfigError, match=r"lengths do not match.*peagle drafter generate"):
        GeneratedText.load(tmp_path / "rows.npz")


@given(
    st.lists(st.tuples(st.integers(1, 120), st.integers(ANSWER_TOKENS_MIN, 130)), min_size=1, max_size=6),
    st.integers(0, 400),
    st.integers(16, 300),
)
def test_a_crop_holds_an_answer_and_no_padding(sizes: list[tuple[int, int]], step: int, crop_tokens: int) -> None:
    text = GeneratedText.of([[2] * prompt for prompt, _ in sizes], [[1] * answer for _, answer in sizes])
    for row in rows_of_step(text, CORPUS, replace(PLAN, generated_ratio=1.0, crop_tokens=crop_tokens), step):
        assert (row.tokens[: row.prompt_tokens] == 2).all()
        assert (row.tokens[row.prompt_tokens :] == 1).all()
        assert len(row.tokens) - row.prompt_tokens >= ANSWER_TOKENS_MIN


@given(st.integers(0, 2000), st.integers(16, 80), st.booleans())
def test_full_rows_are_cut_as_they_always_were(step: int, crop_tokens: int, told: bool) -> None:
    tokens = np.random.default_rng(1).integers(2, 99, (5, 64)).astype(np.int32)
    prompts = np.array([4, 20, 40, 56, 1], np.int32)
    text = GeneratedText(tokens, prompts, np.full(5, 64, np.int32) if told else None)
    plan = replace(PLAN, crop_tokens=crop_tokens, tokens_per_step=160)
    draw = np.random.default_rng((plan.seed, step))
    length = 64 if step % plan.whole_row_every == 0 else min(crop_tokens, 64)
    for row in rows_of_step(text, CORPUS, plan, step):
        if draw.random() < plan.generated_ratio:
            index = draw.integers(5)
            first = min(max(0, prompts[index] + ANSWER_TOKENS_MIN - length), 64 - length)
            start = draw.integers(first, 64 - length + 1)
            assert row.tokens.tolist() == tokens[index, start : start + length].tolist()
            assert row.prompt_tokens == max(0, prompts[index] - start)
        else:
            start = draw.integers(len(CORPUS) - length)
            assert len(row.tokens) == length


@pytest.fixture(scope="module")
def gradients() -> Callable[[GeneratedText, HeadPlan], dict[str, torch.Tensor]]:
    """Return the gradients of one step on whole rows for a new head of the embedded target."""
    torch.set_num_threads(1)
    tap, config = TargetTap(TARGET, TAPS), AutoConfig.from_pretrained(TARGET)

    def of(text: GeneratedText, plan: HeadPlan) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        head = make_head(TARGET, config, 1, plan, TAPS)
        rows = rows_of_step(text, CORPUS, plan, 0)
        for row in rows:
            backward(head, tap(row), plan, len(rows))
        return {name: each.grad for name, each in head.named_parameters() if each.grad is not None}

    return of


@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_padding_teaches_nothing(
    gradients: Callable[[GeneratedText, HeadPlan], dict[str, torch.Tensor]], method: str
) -> None:
    plan = replace(
        HEAD_PLANS[method], layers=1, trained_depth=4, generated_ratio=1.0, whole_row_every=1, tokens_per_step=144
    )
    first, second = gradients(padded(0), plan), gradients(padded(1234), plan)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = padded(0)
    other.tokens[:, 11] = 77  # in the answers themselves
    assert any(not torch.equal(first[name], each) for name, each in gradients(other, plan).items())


def test_training_checks_ignore_padding() -> None:
    text, ample = padded(1, np.int64), 64 * 2**30
    check_training(PLAN, SHAPE, text, CORPUS, 1, ample)
    check_training(PLAN, SHAPE, padded(9999), CORPUS, 1, ample)
    late = GeneratedText(text.tokens, np.array([4, 5, 4, 4], np.int32), text.lengths)
    with pytest.raises(ConfigError, match=r"prompt_tokens = 5: a row of 12 tokens .* no answer of 8"):
        check_training(PLAN, SHAPE, late, CORPUS, 1, ample)
    deep = replace(HEAD_PLANS["eagle3"], trained_depth=11)
    with pytest.raises(ConfigError, match=r"lengths = 12: .*11 depths.*Lower head\.trained_depth to 10"):
        check_training(deep, SHAPE, text, CORPUS, None, ample)
    with pytest.raises(ConfigError, match=r"Raise --row-tokens of `peagle drafter generate`"):
        check_training(replace(PLAN, trained_depth=44), SHAPE, text, CORPUS, 1, ample)
