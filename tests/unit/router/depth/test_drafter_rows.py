"""How many rows a drafter computes."""

from itertools import product

import pytest

from peagle.router.depth.drafter_rows import decode_rows, decode_rows_max

LADDER = (0, 1, 2, 3, 5, 7)


@pytest.mark.parametrize(
    ("batch_size", "verified", "drafted", "rows"), [(1, 7, 7, 14), (128, 1, 1, 256), (128, 1, 7, 1024), (4, 0, 3, 12)]
)
def test_a_request_has_a_row_for_each_checked_token_and_a_mask_for_each_draft_but_the_first(
    batch_size: int, verified: int, drafted: int, rows: int
) -> None:
    assert decode_rows(batch_size, verified, drafted) == rows == batch_size * (1 + verified + drafted - 1)


def test_the_largest_is_two_whole_drafts_for_each_request() -> None:
    steps = product(range(1, 129), LADDER, LADDER)
    assert decode_rows_max(128, 7) == 1792 == max(decode_rows(*step) for step in steps)
