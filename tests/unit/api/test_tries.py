"""The tries of a request, shared by ingress and request router but not sent to the replica."""

import pytest
from ray import cloudpickle
from ray.llm._internal.serve.core.protocol import RawRequestInfo

from peagle.api.ingress import TriedRequestInfo
from peagle.api.ledger import Ledger
from peagle.api.tries import Tries, tries_of


def test_a_replica_that_was_lost_has_failed_and_one_that_was_only_full_has_not() -> None:
    tries = Tries("m")
    tries.lost()  # before any had it
    assert tries.failed == frozenset()
    for replica in ("full", "a"):
        tries.sent(replica)
    assert tries.failed == frozenset()
    tries.lost()
    tries.sent("b")
    assert tries.failed == {"a"}
    tries.lost()
    assert tries.failed == {"a", "b"}


def test_what_dispatch_tells_arrives_in_the_ledger_of_the_request() -> None:
    ledger = Ledger()
    tries = Tries("m", ledger)
    tries.decided("soonest")
    tries.waits(20.0)
    counted = {(name, dict(labels).get("reason")): value for name, labels, value in ledger.metrics.values()}
    assert counted[("peagle_dispatch_decisions_total", "soonest")] == 1
    assert ledger.waits.of("m", 1.0) == pytest.approx(20.0)


def test_a_replica_gets_the_headers_and_nothing_of_this_process() -> None:
    info = TriedRequestInfo({"traceparent": "00-1"}, Tries("m", Ledger()))
    assert tries_of(["body", info], "m") is info.tries
    there = cloudpickle.loads(cloudpickle.dumps(info))
    assert type(there) is RawRequestInfo
    assert there == RawRequestInfo(headers={"traceparent": "00-1"})


def test_a_call_that_no_ingress_makes_is_counted_nowhere() -> None:
    for arguments in ([], ["body"], ["body", RawRequestInfo()]):
        tries = tries_of(arguments, "m")
        tries.decided("soonest")
        tries.waits(1.0)
        assert tries.failed == frozenset()


def test_a_ledger_travels_without_what_was_counted() -> None:
    ledger = Ledger()
    ledger.metrics.retried("m")
    there = cloudpickle.loads(cloudpickle.dumps(ledger))
    assert any(value for _, _, value in ledger.metrics.values())
    assert not any(value for _, _, value in there.metrics.values())
