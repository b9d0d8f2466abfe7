import math
from dataclasses import replace

import pytest

from peagle.router.dispatch import SOONEST
from support.depth.candidates import IDLE, REQUEST


@pytest.mark.parametrize("bad", [math.nan, -1.0])
def test_a_score_that_breaks_the_contract_makes_a_candidate_the_last_choice(bad: float) -> None:
    policy = replace(SOONEST, scorers={"broken_s": lambda request, candidate: bad})
    assert policy.weigh(REQUEST, IDLE, by_report=True).cost == math.inf
