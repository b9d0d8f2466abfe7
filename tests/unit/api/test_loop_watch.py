"""Delays of an event loop are measured, and counted with the requests."""

import asyncio
import time

from starlette.testclient import TestClient

from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import build_http
from peagle.api.http_metrics import HttpMetrics
from peagle.api.loop_watch import PERIOD_S, watch_loop
from support.waiting import eventually

STALL_S = 0.3


async def test_a_stall_is_told_with_its_length() -> None:
    told: list[float] = []
    watching = asyncio.create_task(watch_loop(told.append))
    await asyncio.sleep(PERIOD_S / 2)
    time.sleep(STALL_S)  # noqa: ASYNC251 -- the stall
    await asyncio.sleep(2 * PERIOD_S)
    watching.cancel()
    assert max(told) >= STALL_S - PERIOD_S


def observed(metrics: HttpMetrics) -> float:
    return sum(value for name, _, value in metrics.values() if name == "peagle_ingress_loop_stall_seconds_count")


def test_a_running_application_watches_its_loop_unless_metrics_are_off() -> None:
    for metrics in (True, False):
        app = build_http(ApiSettings(metrics=metrics))
        with TestClient(app):
            if metrics:
                eventually(lambda: observed(app.state.ledger.metrics))  # noqa: B023 -- called at once
            else:
                time.sleep(3 * PERIOD_S)
        assert (observed(app.state.ledger.metrics) > 0) == metrics
