"""Scrapes while Serve's controller is away."""

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from peagle.api import scraping
from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import build_http
from peagle.api.scraping import MetricsRoutes, States
from support.virtual_time import in_virtual_time


class Routes(MetricsRoutes):
    """An ingress without models."""

    def __init__(self) -> None:
        self.app = build_http(ApiSettings())
        self._default_serve_handles = {}
        self._router = None


class Controller:
    """Serve's controller, which answers once it is back."""

    def __init__(self) -> None:
        self.back = asyncio.Event()
        self.waiting = 0

    async def states(self) -> States:
        self.waiting += 1
        await self.back.wait()
        self.waiting -= 1
        return {("app", "ingress"): Counter(running=1)}


@in_virtual_time
async def test_scrapes_wait_for_one_call_to_a_controller_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    here = SimpleNamespace(app_name="app", deployment="ingress", replica_id=SimpleNamespace(unique_id="i"))
    controller, routes = Controller(), Routes()
    monkeypatch.setattr(scraping.serve, "get_replica_context", lambda: here)
    monkeypatch.setattr(scraping, "deployment_states", controller.states)
    for _ in range(20):
        assert set((await routes.scrape(1.0)).ingress) == {"i"}
    assert controller.waiting == 1
    controller.back.set()
    await routes.scrape(1.0)
    assert controller.waiting == 0
    controller.back.clear()
    await routes.scrape(1.0)
    assert controller.waiting == 1
