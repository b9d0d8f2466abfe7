from dataclasses import replace

import pytest

from peagle.router.dispatch import Dispatcher, Route
from peagle.router.dispatch.policies.least_loaded import LEAST_LOADED
from peagle.router.snapshot import RequestRates
from support.candidates import REQUEST, SNAPSHOT


def dispatcher_of(**reports: dict[str, object]) -> Dispatcher:
    made = Dispatcher(LEAST_LOADED)
    made.set_members(reports)
    made.report([replace(SNAPSHOT, replica_id=name, **how) for name, how in reports.items()])
    return made


def routed(dispatcher: Dispatcher, now_s: float = 0.0, **changes: object) -> Route:
    decision = dispatcher.dispatch(replace(REQUEST, **changes), now_s, draw=0)
    assert isinstance(decision, Route)
    return decision


def test_it_takes_the_replica_with_the_fewest_requests_however_slow_it_is() -> None:
    slow = {"running_requests": 1, "prefill_tokens_per_s": 1.0, "queued_prompt_tokens": 9000, "kv_usage_ratio": 1.0}
    decision = routed(dispatcher_of(busy={"running_requests": 1, "waiting_requests": 1}, slow=slow))
    assert (decision.replica_id, decision.reason) == ("slow", "least-loaded")


def test_of_equal_loads_it_takes_the_emptier_cache() -> None:
    for fuller, emptier in (("a", "b"), ("b", "a")):
        assert routed(dispatcher_of(**{fuller: {"kv_usage_ratio": 0.8}, emptier: {}})).replica_id == emptier


def test_what_was_sent_since_the_report_counts_as_load() -> None:
    dispatcher = dispatcher_of(a={}, b={"kv_usage_ratio": 0.1}, c={"running_requests": 3})
    taken = [routed(dispatcher, request_id=str(number)).replica_id for number in range(6)]
    assert taken == ["a", "b", "a", "b", "a", "b"]


@pytest.mark.parametrize("key", [None, 12345])
def test_a_shared_prefix_changes_nothing(key: int | None) -> None:
    reports = {name: {"running_requests": 1} for name in "abc"}
    for idle in reports:
        decision = routed(dispatcher_of(**{**reports, idle: {}}), affinity_key=key, prefix_tokens=900)
        assert (decision.replica_id, decision.reason) == (idle, "least-loaded")


def test_it_needs_reports_but_no_rates() -> None:
    unknown = {"prefill_tokens_per_s": 0.0, "request_tokens_per_s": RequestRates()}
    reports = {"busy": {**unknown, "running_requests": 3}, "idle": unknown}
    assert routed(dispatcher_of(**reports)).reason == "least-loaded"
    assert routed(dispatcher_of(**reports)).replica_id == "idle"
    assert routed(dispatcher_of(**reports), now_s=60.0).reason == "least-in-flight"
