"""What an operator may decide for a model's depth, as the Router takes it."""

from pathlib import Path

import pytest

from peagle.config import parse_deployment
from peagle.errors import ConfigError, NotFoundError
from peagle.router.depth import DepthLimits
from peagle.serve.routing.router_deployment import Router

MODEL = {
    "name": "m",
    "target": {"source": "openai/gpt-oss-120b"},
    "drafter": {"source": "amazon/gpt-oss-120b-p-eagle", "method": "p-eagle", "trained_depth": 8},
    "speculation": {"depth_max": 7, "adaptive": True},
}


def router() -> Router:
    return Router({"m": parse_deployment(MODEL, origin="m.yaml", base=Path.cwd())})


@pytest.mark.parametrize(
    "limits",
    [None, DepthLimits(floor=3, ceiling=3), DepthLimits(pin=7), DepthLimits(floor=7), DepthLimits(paused=True)],
)
async def test_what_can_be_kept_is_taken(limits: DepthLimits | None) -> None:
    await router().limit_model("m", limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (DepthLimits(pin=8), "pin = 8: the drafter does not draft that. Name a K from 0 to 7"),
        (DepthLimits(ceiling=9), "ceiling = 9: the drafter does not draft that"),
        (DepthLimits(floor=5, ceiling=3), "floor = 5: it is above the ceiling of 3. Lower the floor"),
    ],
)
async def test_what_cannot_is_refused_with_the_fix(limits: DepthLimits, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await router().limit_model("m", limits)


async def test_a_model_whose_depth_does_not_adapt_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="other"):
        await router().limit_model("other", DepthLimits(pin=1))
