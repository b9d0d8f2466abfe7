"""Answers to operators while no Router is running."""

from types import SimpleNamespace
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import RayActorError, RayTaskError

from peagle.api.api_settings import ApiSettings
from peagle.api.depth_routes import DepthRoutes
from peagle.api.ingress import PeagleIngress
from peagle.api.openai_errors import describe
from peagle.errors import NotFoundError, RouterLostError


class Routes(DepthRoutes):
    def __init__(self, failure: Exception) -> None:
        async def fail(*_: Any) -> None:
            raise failure

        self._router = SimpleNamespace(depth=SimpleNamespace(remote=fail))  # type: ignore[assignment]


def asked_for_a_depth() -> Any:
    return SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(settings=ApiSettings())),
        client=SimpleNamespace(host="127.0.0.1"),
        url=SimpleNamespace(path="/fleet/replicas/any/depth", hostname="127.0.0.1"),
        headers={},
    )


@pytest.mark.parametrize(
    "failure",
    [TimeoutError(), RayActorError(), AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata())],
    ids=["silent", "dead", "dies while it is asked"],
)
async def test_a_router_that_does_not_answer_is_said_to(failure: Exception) -> None:
    with pytest.raises(RouterLostError) as caught:
        await Routes(failure).depth(asked_for_a_depth(), "any")
    reply = describe(caught.value)
    assert reply.status == 503
    assert "The Router does not answer; replicas keep their last plans." in reply.message


async def test_what_the_router_refuses_is_told_as_it_said_it() -> None:
    said = NotFoundError("There is no replica 'any'.")
    with pytest.raises(NotFoundError, match="no replica 'any'"):
        await Routes(RayTaskError("depth", "", said)).depth(asked_for_a_depth(), "any")


def test_the_ingress_replaces_none_of_the_routes_own_methods() -> None:
    """Regression: every depth route once answered 500."""
    own = {name for name in vars(DepthRoutes) if not name.startswith("__")}
    assert "_ask_router" in own
    assert not own & set(vars(PeagleIngress))
