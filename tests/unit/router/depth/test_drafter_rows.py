"""How many rows a drafter computes, and which numbers of rows occur."""

import pytest

from peagle.router.depth.drafter_rows import decode_row_counts, decode_rows, decode_rows_max

LADDER = (0, 1, 2, 3, 5, 7)


@pytest.mark.parametrize(
    ("batch_size", "verified", "drafted", "rows"), [(1, 7, 7, 14), (128, 1, 1, 256), (128, 1, 7, 1024), (4, 0, 3, 12)]
)
def test_a_request_has_a_row_for_each_checked_token_and_a_mask_for_each_draft_but_the_first(
    batch_size: int, verified: int, drafted: int, rows: int
) -> None:
    assert decode_rows(batch_size, verified, drafted) == rows == batch_size * (1 + verified + drafted - 1)


def test_every_pair_of_old_and_new_depth_occurs_and_none_without_drafts() -> None:
    assert decode_row_counts([1], (0, 1, 3)) == (1, 2, 3, 4, 6)
    counts = decode_row_counts([1, 8, 128], LADDER)
    assert counts == tuple(sorted(set(counts)))
    assert {size * (old + new) for size in (1, 8, 128) for old in LADDER for new in LADDER if new} == set(counts)


def test_the_largest_is_two_whole_drafts_for_each_request() -> None:
    assert decode_rows_max(128, 7) == 1792 == decode_row_counts(range(1, 129), LADDER)[-1]
