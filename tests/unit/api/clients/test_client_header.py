"""The internal header that names a request's client."""

from peagle.api.clients.client_header import CLIENT_HEADER, flow_in, told
from peagle.router.fairness.client_terms import Client, ClientClass
from peagle.router.fairness.step_sharing import Flow


def test_a_client_arrives_as_the_flow_of_its_requests() -> None:
    assert flow_in({CLIENT_HEADER: told(Client("team", 3.0))}) == Flow("team", 3.0)
    assert flow_in({CLIENT_HEADER: told(Client("nightly", class_=ClientClass.BATCH))}) == Flow("nightly", is_batch=True)


def test_without_it_nobody_asks() -> None:
    assert flow_in({"traceparent": "00-1"}) is None
