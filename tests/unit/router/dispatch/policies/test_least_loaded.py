import pytest

from peagle.router.dispatch import Dispatcher
from peagle.router.dispatch.policies.least_loaded import LEAST_LOADED
from peagle.router.snapshot import RequestRates
from support.depth.candidates import dispatcher_of, routed


def least_loaded(**reports: dict[str, object]) -> Dispatcher:
    return dispatcher_of(LEAST_LOADED, reports)


def test_the_replica_with_the_fewest_requests_wins_even_if_it_is_slow() -> None:
    slow = {"running_requests": 1, "prefill_tokens_per_s": 1.0, "queued_prompt_tokens": 9000, "kv_usage_ratio": 1.0}
    decision = routed(least_loaded(busy={"running_requests": 1, "waiting_requests": 1}, slow=slow))
    assert (decision.replica_id, decision.reason) == ("slow", "least-loaded")


def test_equal_loads_are_decided_by_the_emptier_cache() -> None:
    for fuller, emptier in (("a", "b"), ("b", "a")):
        assert routed(least_loaded(**{fuller: {"kv_usage_ratio": 0.8}, emptier: {}})).replica_id == emptier


def test_requests_sent_since_the_report_count_as_load() -> None:
    dispatcher = least_loaded(a={}, b={"kv_usage_ratio": 0.1}, c={"running_requests": 3})
    taken = [routed(dispatcher, request_id=str(number)).replica_id for number in range(6)]
    assert taken == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize("key", [None, 12345])
def test_a_shared_prefix_changes_nothing(key: int | None) -> None:
    reports = {name: {"running_requests": 1} for name in "abc"}
    for idle in reports:
        decision = routed(least_loaded(**{**reports, idle: {}}), affinity_key=key, prefix_tokens=900)
        assert (decision.replica_id, decision.reason) == (idle, "least-loaded")


def test_it_needs_reports_but_no_rates() -> None:
    unknown = {"prefill_tokens_per_s": 0.0, "request_tokens_per_s": RequestRates()}
    reports = {"busy": {**unknown, "running_requests": 3}, "idle": unknown}
    assert routed(least_loaded(**reports)).reason == "least-loaded"
    assert routed(least_loaded(**reports)).replica_id == "idle"
    assert routed(least_loaded(**reports), now_s=60.0).reason == "least-in-flight"
