from types import SimpleNamespace

import pytest

from peagle.api.attempt import attempt_id, client_request


def test_tries_at_one_request_belong_together_and_only_the_first_is_new() -> None:
    tries = [client_request(SimpleNamespace(request_id=attempt_id("ab-c", attempt))) for attempt in range(3)]
    assert tries == [("ab-c", False), ("ab-c", True), ("ab-c", True)]


@pytest.mark.parametrize("body", [None, SimpleNamespace(), SimpleNamespace(request_id=None)])
def test_a_body_without_an_id_belongs_to_none(body: object) -> None:
    assert client_request(body) == ("", False)
