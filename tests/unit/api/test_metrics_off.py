"""With metrics off nothing is counted, and who asks for them is told so."""

import httpx
import pytest

from peagle.api.app import build_http
from peagle.api.ingress import PeagleIngress
from peagle.api.metrics import HttpMetrics
from peagle.api.settings import ApiSettings


@pytest.mark.parametrize("metrics", [True, False])
async def test_requests_are_counted_unless_metrics_are_off(metrics: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = HttpMetrics()
    monkeypatch.setattr("peagle.api.middleware.http_metrics", lambda: counters)
    transport = httpx.ASGITransport(build_http(ApiSettings(metrics=metrics)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/nowhere")
    assert answer.headers["x-request-id"]
    assert bool(counters.values()) == metrics


async def test_who_asks_for_metrics_that_are_off_gets_openai_s_404() -> None:
    app = build_http(ApiSettings(metrics=False))
    app.get("/metrics")(PeagleIngress.__new__(PeagleIngress).metrics)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "metrics_off"
