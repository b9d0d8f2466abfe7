"""What an operator reads while there is no Router to ask."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from peagle.api.depth import DepthRoutes
from peagle.api.errors import describe
from peagle.api.ingress import PeagleIngress
from peagle.api.settings import ApiSettings
from peagle.errors import RouterLostError


class Routes(DepthRoutes):
    def __init__(self, failure: Exception) -> None:
        async def fail(*_: Any) -> None:
            raise failure

        self._router = SimpleNamespace(depth=SimpleNamespace(remote=fail))  # type: ignore[assignment]


@pytest.mark.parametrize("failure", [TimeoutError(), RayActorError()], ids=["silent", "dead"])
async def test_a_router_that_does_not_answer_is_said_to(failure: Exception) -> None:
    state = SimpleNamespace(settings=ApiSettings())
    request: Any = SimpleNamespace(
        app=SimpleNamespace(state=state),
        client=SimpleNamespace(host="127.0.0.1"),
        url=SimpleNamespace(path="/fleet/replicas/any/depth", hostname="127.0.0.1"),
        headers={},
    )
    with pytest.raises(RouterLostError) as caught:
        await Routes(failure).depth(request, "any")
    reply = describe(caught.value)
    assert reply.status == 503
    assert "The Router does not answer; replicas keep their last plans." in reply.message


def test_the_ingress_replaces_none_of_the_routes_own_methods() -> None:
    """It did once, and every depth route answered 500."""
    own = {name for name in vars(DepthRoutes) if not name.startswith("__")}
    assert "_ask_router" in own
    assert not own & set(vars(PeagleIngress))
