"""What a head drafts, and how much of it a greedy target accepts."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from speculators.losses import resolve_loss_config
from speculators.models.peagle.data import generate_cod_sample_indices
from transformers import AutoModelForCausalLM

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.evaluate import drafts_of, evaluate, walk
from peagle.drafter.train.compute import CPU, autocast
from peagle.drafter.train.heads import Row, TargetTap, new_markov_head
from peagle.drafter.train.partition import draft_tokens
from peagle.drafter.train.pretrained import load_head
from peagle.errors import ConfigError
from support.paths import EMBEDDED

TARGET = EMBEDDED / "target"
TOKENS = np.random.default_rng(4).integers(2, 2048, 40).astype(np.int32)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def test_a_walk_counts_accepted_drafts_and_continues_after_them() -> None:
    tokens = np.arange(10)
    drafts = np.array([[known + 1, known + 2] for known in range(1, 10)])
    assert walk(drafts, tokens, 2) == [2, 2]  # known 2, 5; from 8 on a draft would exceed the row
    assert walk(drafts * 0, tokens, 2) == [0] * 6
    drafts[1] = (3, 99)
    assert walk(drafts, tokens, 2) == [1, 2, 2]
    assert walk(drafts, tokens, 9) == []


@given(st.integers(1, 6), st.integers(0, 30), st.lists(st.integers(0, 1), min_size=8, max_size=30))
def test_a_walk_accepts_exactly_the_drafts_that_the_row_goes_on_with(
    depth: int, prompt_tokens: int, row: list[int]
) -> None:
    tokens = np.array(row)
    drafts = np.random.default_rng(len(row)).integers(0, 2, (len(row) - 1, depth))
    known = max(1, prompt_tokens)
    for accepted in walk(drafts, tokens, prompt_tokens):
        assert drafts[known - 1][:accepted].tolist() == row[known + 1 : known + 1 + accepted]
        assert accepted == depth or drafts[known - 1][accepted] != row[known + 1 + accepted]
        known += accepted + 1
    assert known + depth >= len(row)


@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_a_draft_depends_only_on_what_is_known_when_it_is_made(method: str) -> None:
    head, plan = load_head(TARGET, EMBEDDED / method)
    assert (plan.method, plan.tapped_layers) == (method, (2, 12, 23))
    head.float()
    batch = TargetTap(TARGET, plan.tapped_layers or ())(Row(TOKENS))
    whole = drafts_of(head, batch, 1 if method == "eagle3" else 5)
    for known in (5, 17, 30):
        cut = {name: value[:, :known] for name, value in batch.items()}
        assert torch.equal(drafts_of(head, cut, whole.shape[1])[-1], whole[known - 1])


def test_partitioned_drafts_are_those_that_the_training_pass_makes() -> None:
    head, plan = load_head(TARGET, EMBEDDED / "p-eagle")
    if plan.markov_rank:
        del head.markov_head  # speculators' training pass has none
    batch = TargetTap(TARGET, plan.tapped_layers or ())(Row(TOKENS))
    seen: list[torch.Tensor] = []
    head.lm_head.register_forward_hook(lambda _module, _inputs, logits: seen.append(logits[0].argmax(-1)))
    torch.manual_seed(2)
    anchors, depths = generate_cod_sample_indices(len(TOKENS) - 1, batch["loss_mask"], 6, 0.9, 0.5)
    torch.manual_seed(2)
    with autocast(CPU), torch.no_grad():
        head(
            **batch,
            num_depths=6,
            down_sample_ratio=0.9,
            down_sample_ratio_min=0.5,
            loss_config=resolve_loss_config("kl_div", "eager"),
        )
    drafts = draft_tokens(head, batch, 6, partial(autocast, CPU), partitions=3)
    assert (drafts[anchors, depths] == seen[0])[anchors >= 0].float().mean() > 0.97  # ties in bfloat16


def test_a_head_drafts_along_its_markov_head() -> None:
    head, plan = load_head(TARGET, EMBEDDED / "p-eagle")
    head.markov_head = new_markov_head(2048, 192, 8)
    batch = TargetTap(TARGET, plan.tapped_layers or ())(Row(TOKENS))

    def drafts() -> torch.Tensor:
        return draft_tokens(head, batch, 3, partial(autocast, CPU), partitions=2)

    unbiased = drafts()
    assert torch.equal(unbiased, drafts())
    torch.nn.init.normal_(head.markov_head.markov_w2.weight)
    assert torch.equal(drafts()[:, 0], unbiased[:, 0])
    assert not torch.equal(drafts(), unbiased)


def test_a_head_drafts_along_the_ngrams_of_the_row_up_to_there() -> None:
    head, plan = load_head(TARGET, EMBEDDED / "p-eagle")
    tokens = np.tile(TOKENS[:10], 4)
    batch = TargetTap(TARGET, plan.tapped_layers or ())(Row(tokens))
    plain, biased = (drafts_of(head, batch, 5, nats) for nats in (0.0, 5.0))
    changed = (plain != biased).any(1)
    assert not changed[:9].any()  # no n-gram has occurred again yet
    assert changed[10:].any()
    assert torch.equal(plain[:, 0], biased[:, 0])
    for known in (5, 17, 30):
        cut = {name: value[:, :known] for name, value in batch.items()}
        assert torch.equal(drafts_of(head, cut, 5, 5.0)[-1], biased[known - 1])


def test_evaluation_counts_greedy_rows_and_leaves_others_out() -> None:
    rows = greedy_rows(3)
    rows.tokens[2] = TOKENS[: rows.tokens.shape[1]]
    found = evaluate(TARGET, EMBEDDED / "p-eagle", rows, 4, lambda _done: None)
    assert (found.rows, found.rows_left_out, found.depth) == (3, 1, 4)
    assert list(found.accepted_steps) == sorted(found.accepted_steps, reverse=True)
    assert found.steps >= found.accepted_steps[0] > 0
    assert 1 <= found.acceptance_length <= 5


def test_drafts_in_padding_are_not_counted() -> None:
    rows = greedy_rows(3)
    plain = evaluate(TARGET, EMBEDDED / "p-eagle", rows, 4, lambda _done: None)
    junk = np.full((3, 20), 7, np.int32)
    padded = GeneratedText(np.hstack([rows.tokens, junk]), rows.prompt_tokens, np.full(3, 40, np.int32))
    assert evaluate(TARGET, EMBEDDED / "p-eagle", padded, 4, lambda _done: None) == plain
    short = GeneratedText(padded.tokens, np.array([16, 16, 2], np.int32), np.array([40, 40, 5], np.int32))
    assert evaluate(TARGET, EMBEDDED / "p-eagle", short, 4, lambda _done: None).steps < plain.steps


def greedy_rows(count: int) -> GeneratedText:
    """Return rows of 40 tokens, the last 24 of which the target wrote greedily."""
    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)
    tokens = torch.from_numpy(np.random.default_rng(9).integers(2, 2048, (count, 16)))
    with torch.no_grad():
        for _ in range(24):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    return GeneratedText(tokens.numpy().astype(np.int32), np.full(count, 16, np.int32))


def test_text_that_cannot_be_evaluated_is_named(tmp_path: Path) -> None:
    rows = GeneratedText(np.stack([TOKENS, TOKENS]), np.array([8, 8], np.int32))
    with pytest.raises(ConfigError, match=r"--depth = 9: the head was trained to depth 8"):
        evaluate(TARGET, EMBEDDED / "p-eagle", rows, 9, print)
    with pytest.raises(ConfigError, match="no row is greedy text"):
        evaluate(TARGET, EMBEDDED / "p-eagle", rows, 4, lambda _done: None)
    foreign = GeneratedText(rows.tokens + 2048, rows.prompt_tokens)
    with pytest.raises(ConfigError, match="the target's tokens go from 0 to 2047"):
        evaluate(TARGET, EMBEDDED / "p-eagle", foreign, 4, print)
    with pytest.raises(ConfigError, match="trained in another way"):
        load_head(TARGET, TARGET)
    with pytest.raises(ConfigError, match="no such file"):
        load_head(TARGET, tmp_path)
    with pytest.raises(ConfigError, match=r"eagle_aux_hidden_state_layer_ids.*the target's layers go from 0 to 3"):
        load_head(EMBEDDED / "p-eagle", EMBEDDED / "p-eagle")
    shutil.copytree(EMBEDDED / "p-eagle", tmp_path / "turned")
    config = json.loads((tmp_path / "turned" / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"].reverse()
    (tmp_path / "turned" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"\[23, 12, 2\]: vLLM gives a head the states"):
        load_head(TARGET, tmp_path / "turned")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match=r"target.*model_type = 'bert': heads can be trained for"):
        load_head(tmp_path, EMBEDDED / "p-eagle")
