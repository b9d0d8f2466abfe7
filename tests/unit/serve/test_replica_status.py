"""What a replica says of itself to whoever asks for the fleet."""

from types import SimpleNamespace
from typing import Any

import pytest

from peagle.serve import server
from peagle.serve.server import STATIC, PeagleServer


class Replica(PeagleServer):
    """One without Ray around it, whose engine is dead or alive."""

    _plan = STATIC

    def __init__(self, errored: bool) -> None:
        load = SimpleNamespace(running_requests=1, waiting_requests=0, kv_usage_ratio=0.5, generation_tokens=9)
        self._listener: Any = SimpleNamespace(load=load)
        self.engine = SimpleNamespace(_engine_client=SimpleNamespace(errored=errored))

    def __del__(self) -> None:
        """There is nothing to stop."""


@pytest.mark.parametrize(("errored", "state"), [(False, "ready"), (True, "dead")])
def test_a_replica_whose_engine_is_dead_does_not_call_itself_ready(
    errored: bool, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "replica_id", lambda: "r")
    monkeypatch.setattr(server, "get_node_ip_address", lambda: "node")
    assert Replica(errored)._status(None)["state"] == state
