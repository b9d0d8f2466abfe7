"""Layout of a drafter's rows: accepted tokens shifted left by one, the new token, masks."""

import pytest

torch = pytest.importorskip("torch")

from peagle.engine.drafting.cpu_draft_rows import Cache, Verified, lay_out, slots_of  # noqa: E402


def cache(context_tokens: int = 64) -> Cache:
    return Cache(torch.tensor([[7, 2, 5, 1], [3, 0, 6, 4]]), block_size=4, context_tokens=context_tokens)


def test_rejected_rows_are_left_out_and_masks_follow_the_new_token() -> None:
    verified = Verified([0, 4, 6], [2, 0], tokens=[10, 11, 12, 13, 20, 21], positions=[3, 4, 5, 6, 0, 1])
    rows = lay_out(verified, [15, 25], [1, 1], cache())
    assert rows.ids == [11, 15, 1, 1, 21, 25, 1, 1]
    assert rows.positions == [3, 4, 5, 6, 0, 1, 2, 3]
    assert rows.to_sample == [1, 2, 3, 5, 6, 7]
    assert rows.starts == [0, 4, 8]
    assert rows.kept == [(0, 2), (4, 6)]
    assert rows.written == [(4, [11, 15]), (1, [21, 25])]
    assert rows.slots == [31, 8, 9, 10, 12, 13, 14, 15]


def test_a_depth_of_one_has_no_masks() -> None:
    rows = lay_out(Verified([0, 1], [0], [10], [8]), [11], [], cache())
    assert (rows.ids, rows.to_sample, rows.slots) == ([11], [0], [20])


def test_rows_beyond_the_context_have_no_place() -> None:
    assert slots_of(range(6, 10), cache(context_tokens=8), 0) == [10, 11, -1, -1]
