"""With metrics off nothing is counted, and requests for metrics get an error that says so."""

from typing import Any

import httpx
import pytest
from starlette.requests import Request

from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import build_http
from peagle.api.http_metrics import HttpMetrics
from peagle.api.ingress import PeagleIngress


@pytest.mark.parametrize("metrics", [True, False])
async def test_requests_are_counted_unless_metrics_are_off(metrics: bool) -> None:
    app = build_http(ApiSettings(metrics=metrics))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/nowhere")
    assert answer.headers["x-request-id"]
    assert any(value for _, _, value in app.state.ledger.metrics.values()) == metrics


async def test_a_request_that_was_open_when_counting_paused_is_seen_to_end() -> None:
    app = build_http(ApiSettings())
    counters: HttpMetrics = app.state.ledger.metrics

    async def pause(request: Request) -> None:
        counters.counting = False

    app.get("/pause")(pause)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        await http.get("/pause")
        before = counters.values()
        await http.get("/pause")
    assert any(dict(labels).get("route") == "/pause" for _, labels, _ in before)
    assert counters.values() == before


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [({"counting": 0}, 400, "counting"), ({}, 400, "counting"), ({"counting": True, "more": 1}, 400, "more")],
)
async def test_a_pause_that_is_not_understood_is_refused(body: dict[str, Any], status: int, named: str) -> None:
    app = build_http(ApiSettings())
    app.put("/fleet/metrics")(PeagleIngress.__new__(PeagleIngress).count)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answer = await http.put("/fleet/metrics", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, named)


async def test_who_asks_for_metrics_that_are_off_gets_openai_s_404() -> None:
    app, ingress = build_http(ApiSettings(metrics=False)), PeagleIngress.__new__(PeagleIngress)
    app.get("/metrics")(ingress.metrics)
    app.put("/fleet/metrics")(ingress.count)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
        answers = [await http.get("/metrics"), await http.put("/fleet/metrics", json={"counting": True})]
    assert [answer.status_code for answer in answers] == [404, 404]
    assert {answer.json()["error"]["code"] for answer in answers} == {"metrics_off"}
