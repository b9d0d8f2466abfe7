"""The weight of each position equals its gain in acceptance length."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peagle.drafter.train.loss import StepwiseKL, acceptance_weights, confidence, weighted_kl

CHANCE = st.floats(0.05, 1.0)


def whole_chains(chances: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return chances, anchors (the first before the row's start) and depths of every position of whole chains."""
    right = torch.tensor(chances, dtype=torch.float64)
    anchors, depths = torch.meshgrid(torch.arange(len(chances)) - 2, torch.arange(right.shape[1]), indexing="ij")
    return right.flatten(), anchors.flatten(), depths.flatten()


@given(
    st.integers(1, 5).flatmap(
        lambda depth: st.lists(st.lists(CHANCE, min_size=depth, max_size=depth), min_size=1, max_size=4)
    )
)
def test_a_position_weighs_what_the_acceptance_length_gains_by_it(chances: list[list[float]]) -> None:
    right, anchors, depths = whole_chains(chances)
    right.requires_grad_()
    acceptance_length = right.view(len(chances), -1).cumprod(1).sum()
    acceptance_length.backward()
    assert right.grad is not None
    # The derivative by the logarithm of each chance; a floor near 0 leaves the chances unchanged.
    weights = acceptance_weights(right.detach(), anchors, depths, [1.0] * len(chances[0]), 1e-12)
    assert torch.allclose(weights, right.grad * right.detach(), rtol=1e-6)


def test_sampled_positions_represent_the_missing_ones() -> None:
    right, anchors, depths = whole_chains([[0.9, 0.8, 0.7, 0.6]] * 2000)
    kept = [1.0, 0.5, 0.25, 0.25]
    draw = torch.rand(2000, generator=torch.Generator().manual_seed(0)).repeat_interleave(4)
    there = draw < torch.tensor(kept).repeat(2000)  # nested: a chain is only cut at its end
    weights = acceptance_weights(right[there], anchors[there], depths[there], kept, 0.1)
    whole = acceptance_weights(right, anchors, depths, [1.0] * 4, 0.1)
    for depth in range(4):
        mean = weights[depths[there] == depth].mean() * kept[depth]  # as a sum over the sampled positions
        assert mean == pytest.approx(float(whole[depth]), rel=0.1)


def test_a_floor_draws_chances_towards_one() -> None:
    right, anchors, depths = whole_chains([[0.0, 0.0, 0.0]])
    assert acceptance_weights(right, anchors, depths, [1.0] * 3, 0.5).tolist() == [0.875, 0.375, 0.125]
    assert acceptance_weights(right, anchors, depths, [1.0] * 3, 1.0).tolist() == [3.0, 2.0, 1.0]


def test_confidence_is_the_chance_of_the_targets_first_choice() -> None:
    logits = torch.tensor([[[0.0, 0.0, 0.0], [2.0, 0.0, 0.0]]])
    targets = torch.tensor([[[1.0, 2.0, 3.0], [9.0, 1.0, 1.0]]])
    assert confidence(logits, targets)[0].tolist() == pytest.approx([1 / 3, 2.718281828**2 / (2.718281828**2 + 2)])


@pytest.mark.parametrize("floor", [None, 0.5])
@pytest.mark.parametrize("prompt_tokens", [0, 3])
def test_a_loss_taken_step_by_step_is_that_of_all_positions_at_once(floor: float | None, prompt_tokens: int) -> None:
    length, depths, vocabulary = 9, 3, 11
    draw = torch.Generator().manual_seed(1)
    logits = [torch.randn(1, length - depth, vocabulary, generator=draw) for depth in range(depths)]
    targets = torch.randn(1, length, vocabulary, generator=draw)
    loss_mask = torch.ones(1, length)
    loss_mask[:, :prompt_tokens] = 0
    steps = StepwiseKL(floor)
    collect, _ = steps.config["kl_div"]
    for depth, step in enumerate(logits):
        assert not collect(step, targets[:, depth:]).any()
    at = [torch.arange(length - depth) for depth in range(depths)]
    anchors, of_depth = torch.cat(at), torch.cat([torch.full_like(each, d) for d, each in enumerate(at)])
    loss, _ = weighted_kl(anchors, of_depth, loss_mask, [1.0] * depths, floor)["kl_div"]
    counted = loss_mask[:, anchors + of_depth]
    at_once = (loss(torch.cat(logits, 1), targets[:, anchors + of_depth]) * counted).sum() / counted.sum()
    assert float(steps.mean(loss_mask)) == pytest.approx(float(at_once), rel=1e-4)
