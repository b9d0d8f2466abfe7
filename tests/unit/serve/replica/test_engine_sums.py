"""An engine's sums: every value is in one bucket, and vLLM's statistics of a step are added once."""

from hypothesis import given
from hypothesis import strategies as st

from peagle.metrics import FINISH
from peagle.serve.replica.engine_sums import Buckets, EngineSums
from support.observe.metrics_sample import engine_sums, finished_request, step_of_vllm


@given(st.lists(st.floats(min_value=0.0, max_value=100.0)))
def test_every_value_is_in_the_bucket_that_it_belongs_to(values: list[float]) -> None:
    bounds = (0.5, 1.0, 10.0)
    buckets = Buckets(bounds)
    for value in values:
        buckets.observe(value)
    assert sum(buckets.counts) == len(values)
    for index, bound in enumerate(bounds):
        assert sum(buckets.counts[: index + 1]) == sum(value <= bound for value in values)


def test_what_vllm_says_of_a_step_is_added() -> None:
    sums = engine_sums()
    sums.stepped(step_of_vllm())
    plain = sums.plain()
    assert (plain["prompt_tokens"], plain["preemptions"], plain["finished"]["stop"]) == (24, 2, 2)
    assert plain["finished"] == dict.fromkeys(FINISH.values, 0) | {"stop": 2}
    assert (plain["prefix_query_tokens"], plain["prefix_hit_tokens"]) == (15, 5)
    assert [sum(plain[name]["counts"]) for name in ("ttft", "itl", "tpot", "e2e", "queue")] == [2, 4, 2, 2, 2]


def test_waits_below_a_millisecond_are_told_apart() -> None:
    sums = EngineSums()
    sums.stepped(step_of_vllm(finished_requests=[finished_request(queued_time=wait) for wait in (0.00005, 0.0004)]))
    assert sums.queue.counts[:3] == [1, 0, 1]


def test_a_request_that_generated_nothing_says_nothing_of_queue_and_tokens() -> None:
    sums = EngineSums()
    aborted = finished_request(finish_reason="abort", num_generation_tokens=0, queued_time=-3.0)
    sums.stepped(step_of_vllm(finished_requests=[aborted]))
    assert sum(sums.queue.counts) == sum(sums.tpot.counts) == 0
    assert +sums.finished == {"abort": 1}
