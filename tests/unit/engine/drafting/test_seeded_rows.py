"""Which rows of a step are drawn by seed, and that a token depends only on seed and position."""

import pytest

torch = pytest.importorskip("torch")

from peagle.engine.drafting.seeded_rows import SeededRows  # noqa: E402


def generator(seed: int) -> "torch.Generator":
    return torch.Generator().manual_seed(seed)


def test_only_seeded_requests_are_drawn_each_by_its_own_rows() -> None:
    rows = SeededRows(
        {1: generator(7), 2: generator(2**64 - 1)}, torch.tensor([4, 5, 6]), torch.tensor([2, 3, 4, 5, 6])
    )
    logits = torch.zeros(5, 50)
    drafted, tokens = rows.sample_drafted(logits, [2, 2, 1])
    assert drafted.tolist() == [2, 3, 4]
    requests, last = rows.sample_last(torch.zeros(3, 50))
    assert requests.tolist() == [1, 2]
    again = SeededRows({0: generator(7)}, torch.tensor([5]), torch.tensor([4, 5]))
    assert again.sample_last(torch.zeros(1, 50))[1].tolist() == last[:1].tolist()
    assert again.sample_drafted(torch.zeros(2, 50), [2])[1].tolist() == tokens[:2].tolist()


def test_where_no_request_with_a_seed_drafts_there_is_nothing_to_draw() -> None:
    rows = SeededRows({0: generator(7)}, torch.tensor([4, 5]), torch.tensor([2]))
    drafted, tokens = rows.sample_drafted(torch.zeros(1, 50), [0, 1])
    assert (drafted.tolist(), tokens.tolist()) == ([], [])
