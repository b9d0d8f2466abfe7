from dataclasses import replace

from peagle.router.dispatch import SOONEST
from support.depth.candidates import IDLE, REQUEST


def test_a_weighed_candidate_shows_the_terms_of_its_cost() -> None:
    weighed = SOONEST.weigh(REQUEST, replace(IDLE, queued_prompt_tokens=250.0), by_report=True)
    assert weighed.terms == {"wait_s": 0.5, "prefill_s": 2.0, "decode_s": 1.0}
    assert weighed.cost == 3.5
