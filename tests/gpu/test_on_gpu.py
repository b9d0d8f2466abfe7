"""Live depth on a GPU: outputs never change, K is as requested, and steps run in full graphs."""

from collections.abc import Iterator
from typing import Any

import pytest

from support.engines.engine_runner import Runner
from support.engines.gpu_checks import CHECKS, adaptive_on_gpu, drafting, on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=[on_gpu, adaptive_on_gpu], ids=["static", "adaptive"])
def engine(gpu: None, request: pytest.FixtureRequest) -> Iterator[tuple[Runner, Any]]:
    with drafting(request.param) as running:
        yield running


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_holds(check: Any, engine: tuple[Runner, Any]) -> None:
    check(*engine)
