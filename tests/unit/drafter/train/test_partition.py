"""The gradients of a partitioned row are those of the whole row, on speculators' own P-EAGLE model."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import LossConfig, resolve_loss_config
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.models.peagle.data import generate_cod_sample_indices
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig

from peagle.drafter.train import heads
from peagle.drafter.train.head_plan import HEAD_PLANS
from peagle.drafter.train.loss import weighted_kl
from peagle.drafter.train.partition import backward_in_chunks, chunks_of

HIDDEN, VOCABULARY, LENGTH, DEPTHS = 32, 64, 40, 5
SAMPLING = {"num_depths": DEPTHS, "down_sample_ratio": 0.9, "down_sample_ratio_min": 0.6}
KEPT = [max(0.9**depth, 0.6) for depth in range(DEPTHS)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def head_of(layers: int, key_heads: int = 4, sliding_window: int | None = None) -> PEagleDraftModel:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        head_dim=8,
    )
    shape._attn_implementation = "sdpa"
    if sliding_window is not None:
        shape.sliding_window = sliding_window
        shape.layer_types = ["full_attention", *["sliding_attention"] * (layers - 1)]
    config = PEagleSpeculatorConfig(
        transformer_layer_config=shape,
        draft_vocab_size=VOCABULARY,
        norm_before_residual=True,
        fc_norm=True,
        norm_output=True,
        eagle_aux_hidden_state_layer_ids=[1, 2, 3],
        mask_token_id=1,
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DEPTHS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=[]),
        ),
    )
    head = PEagleDraftModel(config).float()
    with torch.no_grad():  # weights that speculators takes from the target
        for weight in head.parameters():
            weight.copy_(torch.randn_like(weight) * 0.2 + (weight.ndim == 1))
    head.lm_head.weight.requires_grad_()
    return head


def row(prompt_tokens: int, documents: int = 1) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    loss_mask = torch.ones(1, LENGTH)
    loss_mask[:, :prompt_tokens] = 0
    return {
        "input_ids": torch.randint(2, VOCABULARY, (1, LENGTH), generator=draw),
        "hidden_states": torch.randn(1, LENGTH, 3 * HIDDEN, generator=draw),
        "verifier_last_hidden_states": torch.randn(1, LENGTH, HIDDEN, generator=draw),
        "document_ids": (torch.arange(LENGTH) * documents // LENGTH)[None],
        "loss_mask": loss_mask,
    }


def gradients(head: PEagleDraftModel) -> dict[str, torch.Tensor]:
    found = {name: each.grad.clone() for name, each in head.named_parameters() if each.grad is not None}
    head.zero_grad()
    return found


def compare(
    head: PEagleDraftModel, batch: dict[str, torch.Tensor], partitions: int, floor: float | None = None
) -> None:
    def loss_of(anchors: torch.Tensor, depths: torch.Tensor) -> LossConfig:
        return weighted_kl(anchors, depths, batch["loss_mask"], KEPT, floor)

    torch.manual_seed(3)
    chains = generate_cod_sample_indices(LENGTH, batch["loss_mask"], **SAMPLING)
    config = resolve_loss_config("kl_div", "eager") if floor is None else loss_of(*chains)
    torch.manual_seed(3)
    _, loss, metrics = head(**batch, loss_config=config, **SAMPLING)
    (loss / 4).backward()
    whole = gradients(head)
    torch.manual_seed(3)
    found = backward_in_chunks(head, batch, partitions, SAMPLING, loss_of, nullcontext, loss_scale=1 / 4)
    parts = gradients(head)
    assert parts.keys() <= whole.keys()
    for name, gradient in whole.items():
        part = parts.get(name, torch.zeros_like(gradient))  # a row without chains has no gradient for their parameters
        assert (part - gradient).norm() <= 1e-5 * gradient.norm(), name
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, value in metrics.items():
        if name.startswith("position_"):
            assert found[name] == float(value), name


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("partitions", [1, 2, 8, 100])
def test_gradients_of_a_partitioned_row_are_those_of_the_whole(layers: int, partitions: int) -> None:
    compare(head_of(layers), row(prompt_tokens=7), partitions)


@pytest.mark.parametrize("prompt_tokens", [0, 1, LENGTH - 2], ids=["no prompt", "one token", "almost nothing else"])
def test_gradients_are_equal_wherever_the_prompt_ends(prompt_tokens: int) -> None:
    compare(head_of(2), row(prompt_tokens), 5)


@pytest.mark.parametrize("prompt_tokens", [0, 7])
@pytest.mark.parametrize("partitions", [1, 3, 100])
def test_gradients_are_equal_with_weighted_positions(prompt_tokens: int, partitions: int) -> None:
    compare(head_of(2), row(prompt_tokens), partitions, floor=0.25)


@pytest.mark.parametrize("markov_rank", [0, 5])
def test_training_weighs_the_same_whole_and_in_chunks(monkeypatch: pytest.MonkeyPatch, markov_rank: int) -> None:
    monkeypatch.setattr(heads, "autocast", nullcontext)
    head, batch = head_of(2), row(prompt_tokens=7)
    plan = HEAD_PLANS["p-eagle"]
    plan = replace(plan, trained_depth=DEPTHS, depth_ratio=0.9, depth_ratio_min=0.6, markov_rank=markov_rank)
    if markov_rank:
        head.markov_head = heads.new_markov_head(VOCABULARY, HIDDEN, markov_rank)
        torch.nn.init.normal_(head.markov_head.markov_w2.weight)
    found = []
    for partitions in (1, 4):
        torch.manual_seed(3)
        heads.backward(head, batch, replace(plan, partitions=partitions), 1)
        found.append(gradients(head))
    assert sum(name.startswith("markov_head") for name in found[0]) == (4 if markov_rank else 0)
    for name, gradient in found[0].items():
        assert gradient.any(), name
        assert (found[1][name] - gradient).norm() <= 1e-5 * gradient.norm(), name


def test_only_what_follows_a_draft_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "autocast", nullcontext)
    head, batch = head_of(1), row(prompt_tokens=0)
    plan = replace(HEAD_PLANS["p-eagle"], markov_rank=5)
    losses: dict[tuple[int, float], float] = {}
    head.markov_head = heads.new_markov_head(VOCABULARY, HIDDEN, 5)
    for weight in (0.0, 1.0):
        torch.nn.init.constant_(head.markov_head.markov_w2.weight[:7].detach(), weight)
        for depth in (1, DEPTHS):
            torch.manual_seed(3)
            losses[depth, weight] = heads.backward(head, batch, replace(plan, trained_depth=depth), 1)["loss"]
    assert losses[1, 0.0] == losses[1, 1.0]
    assert losses[DEPTHS, 0.0] != losses[DEPTHS, 1.0]


def test_gradients_are_equal_with_shared_keys_sliding_windows_and_several_documents() -> None:
    compare(head_of(3, key_heads=2, sliding_window=6), row(0, documents=3), 6)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_every_position_is_in_exactly_one_chunk(length: int, partitions: int, data: st.DataObject) -> None:
    deeper = data.draw(st.lists(st.tuples(st.integers(-1, length - 1), st.integers(1, 7)), max_size=80))
    anchors = torch.tensor([*range(length), *(anchor for anchor, _ in deeper)])
    depths = torch.tensor([*[0] * length, *(depth for _, depth in deeper)])
    chunks = list(chunks_of(anchors, depths, length, partitions))
    assert 1 <= len(chunks) <= partitions
    assert [chunk.start for chunk in chunks] == [0, *(chunk.end for chunk in chunks[:-1])]
    assert chunks[-1].end == length
    held = [pair for chunk in chunks for pair in zip(chunk.anchors.tolist(), chunk.depths.tolist(), strict=True)]
    assert sorted(held) == sorted(deeper)
    for chunk in chunks:
        assert all(chunk.start <= max(anchor, 0) < chunk.end for anchor in chunk.anchors.tolist())
