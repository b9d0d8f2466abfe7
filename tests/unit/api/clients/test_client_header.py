"""The internal header that says whose request it is."""

from peagle.api.clients.client_header import CLIENT_HEADER, flow_in, told
from peagle.router.fairness.step_sharing import Flow


def test_a_flow_arrives_as_it_left() -> None:
    for flow in (Flow("team"), Flow("überall", 0.5, True)):
        assert flow_in({CLIENT_HEADER: told(flow)}) == flow
        assert told(flow).isascii()


def test_without_it_nobody_asks() -> None:
    assert flow_in({"traceparent": "00-1"}) is None
