import pytest
import torch
from torch import Tensor

from peagle.engine.drafting.keyed_noise import gumbel_noise, sample_tokens

VOCABULARY = 7
# 0.1 % quantiles of chi-square by degrees of freedom.
CHI_SQUARE = {5: 20.52, 6: 22.46, 35: 66.62, 36: 67.99}


def chi_square(counts: Tensor, shares: Tensor) -> float:
    expected = shares * counts.sum() / shares.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def draw(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    return sample_tokens(logits.expand(len(seeds), -1), seeds, positions)


@pytest.fixture
def logits() -> Tensor:
    return torch.tensor([2.0, -1.0, 0.5, 0.0, 1.5, -2.0, 1.0])


def test_tokens_over_seeds_follow_the_softmax(logits: Tensor) -> None:
    seeds = torch.arange(40_000)
    tokens = draw(logits, seeds, torch.full_like(seeds, 11))
    assert chi_square(tokens.bincount(minlength=VOCABULARY), logits.softmax(0)) < CHI_SQUARE[6]


def test_tokens_over_positions_of_one_seed_follow_the_softmax(logits: Tensor) -> None:
    positions = torch.arange(40_000)
    tokens = draw(logits, torch.full_like(positions, 7), positions)
    assert chi_square(tokens.bincount(minlength=VOCABULARY), logits.softmax(0)) < CHI_SQUARE[6]


@pytest.mark.parametrize("neighbour", ["position", "seed"])
def test_neighbouring_rows_are_independent(logits: Tensor, neighbour: str) -> None:
    seeds = torch.arange(0, 80_000, 2)
    positions = torch.full_like(seeds, 3)
    first = draw(logits, seeds, positions)
    step = (seeds, positions + 1) if neighbour == "position" else (seeds + 1, positions)
    second = draw(logits, *step)
    pairs = (first * VOCABULARY + second).bincount(minlength=VOCABULARY**2).double().view(VOCABULARY, VOCABULARY)
    independent = pairs.sum(1, keepdim=True) * pairs.sum(0, keepdim=True) / pairs.sum()
    assert chi_square(pairs, independent) < CHI_SQUARE[36]


def test_noise_of_neighbouring_tokens_is_uncorrelated() -> None:
    noise = gumbel_noise(torch.arange(20_000), 8)
    correlation = torch.corrcoef(noise.T) - torch.eye(8)
    assert correlation.abs().max() < 5 / 20_000**0.5


def test_a_row_depends_on_nothing_but_its_own_seed_position_and_logits() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 2048, generator=generator)
    seeds, positions = torch.arange(64) % 5, torch.arange(64) // 5
    together = sample_tokens(logits, seeds, positions)
    order = torch.randperm(64, generator=generator)
    assert torch.equal(sample_tokens(logits[order], seeds[order], positions[order]), together[order])
    for row in range(0, 64, 9):
        alone = sample_tokens(logits[row : row + 1], seeds[row : row + 1], positions[row : row + 1])
        assert alone.item() == together[row]


def test_many_rows_are_sampled_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, seeds = torch.randn(10, 100), torch.arange(10)
    whole = sample_tokens(logits, seeds, seeds)
    monkeypatch.setattr("peagle.engine.drafting.keyed_noise.ELEMENTS_AT_ONCE", 250)
    assert torch.equal(sample_tokens(logits, seeds, seeds), whole)


def test_a_masked_token_is_never_drawn(logits: Tensor) -> None:
    logits[0] = float("-inf")
    seeds = torch.arange(20_000)
    counts = draw(logits, seeds, seeds).bincount(minlength=VOCABULARY)
    assert counts[0] == 0
    assert chi_square(counts[1:], logits[1:].softmax(0)) < CHI_SQUARE[5]


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, -(2**63)])
def test_any_64_bit_seed_gives_finite_noise(seed: int) -> None:
    seeds = torch.full((100,), seed)
    assert gumbel_noise(seeds, 500).isfinite().all()
    assert len(draw(torch.zeros(500), seeds, torch.arange(100)).unique()) > 50


def test_single_precision_keeps_the_tail_by_which_rare_tokens_win() -> None:
    noise = torch.cat(
        [gumbel_noise(torch.arange(start, start + 100), 20_000).flatten() for start in range(0, 500, 100)]
    )
    assert noise.dtype is torch.float32
    for above in (2.0, 5.0, 8.0, 10.0):
        expected = len(noise) * -torch.expm1(-torch.exp(torch.tensor(-above))).item()
        assert int((noise > above).sum()) == pytest.approx(expected, abs=5 * expected**0.5)
    # Near 1, floats would be coarse here: the same few values, and none above.
    tail = noise[noise > 10.0]
    assert len(tail.unique()) == len(tail) > 300


def test_the_noise_is_that_of_double_precision_rounded() -> None:
    keys = torch.arange(200)
    exact = double_noise(keys, 5_000)
    off = (gumbel_noise(keys, 5_000) - exact.clamp(min=-2.81)).abs()
    assert off[exact > -1.0].max() < 4e-6
    assert off.max() < 0.01


def double_noise(keys: Tensor, width: int) -> Tensor:
    """Compute the same with Python integers, SplitMix64, for `width` tokens of each key."""
    import numpy as np

    with np.errstate(over="ignore"):
        bits = keys.numpy().astype(np.uint64)[:, None] + np.arange(1, width + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15
        )
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return torch.from_numpy(-np.log(-np.log(uniform)))
