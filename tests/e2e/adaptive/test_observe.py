"""Observing a served model: its metrics are the declared ones, and dashboards show them under load."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dashboards import external
from peagle.metrics import METRICS
from peagle.observe.prometheus import Span, filled_in
from support.observe.dashboard_queries import queries
from support.observe.prometheus_tools import REPOSITORY, program
from support.observe.promql_names import nodes, selectors
from support.platforms.served import Served, free_port
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

GENERATED = REPOSITORY / "dashboards" / "generated"
OF_KEYS = {series for metric in METRICS if metric.name.startswith("peagle_client_") for series in metric.series}
# Series without values for a single healthy replica without API keys.
UNEVENTFUL_SERIES = {
    *OF_KEYS,
    "peagle_dispatch_decisions_total",
    "peagle_replica_depth_changes_total",
    "peagle_replica_goodput_ratio",  # unknown while the guard's fallback holds
    "peagle_replica_graph_steps_total",  # a CPU has no graphs
}
# Alerts that may fire on a busy machine, on which an engine may also get no core for seconds.
OF_SPEED = (
    "Peagle(Ttft|Itl)Budget.*|PeagleGoodputUnderPrediction|PeagleQueueGrows|PeagleDepthFallsBack|PeagleScrapeGaps"
    "|PeagleEngineStalls"
)
# Missing series, and why; queries of other series have data, or are a rule's unmet condition.
ABSENT = {
    **dict.fromkeys([*external.DCGM, "ray_node_gpus_utilization"], "no GPU"),
    **dict.fromkeys(external.KUBE_STATE, "no Kubernetes"),
    **dict.fromkeys(OF_KEYS, "no API keys"),
    "ALERTS": "all is well",
}
PANELS_OF_GPUS = {"Steps by CUDA graph"}
UNEVENTFUL_PANELS = {"Dispatch by reason", "Tokens by client", "Refused by limit"}


@pytest.fixture(scope="module")
def prometheus(adaptive: Served) -> Iterator[str]:
    """What `peagle observe` starts, after a minute of `peagle load`."""
    port, folder = free_port(), str(Path(program("prometheus")).parent)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "XDG_STATE_HOME": str(adaptive.state)}
    places = ["--dashboards", str(GENERATED), "--prometheus-port", str(port)]
    command = [sys.executable, "-m", "peagle.cli", "observe", "--url", adaptive.url, *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            assert f"http://127.0.0.1:{port}" in running.stdout.readline()
            print(peagle("load", "--url", adaptive.url, "--per-second", "1,4", "--seconds", "30"))
            yield f"http://127.0.0.1:{port}"
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 0


@pytest.fixture
def engine_gauges(adaptive: Served, prometheus: str) -> Iterator[list[dict[str, Any]]]:
    """One of vLLM's own gauges. Ray drops gauges that are no longer set, so the engine runs while a test looks."""
    over = threading.Event()

    def keep_running() -> None:
        while not over.wait(0.5):
            adaptive.complete()

    with ThreadPoolExecutor(1) as client:
        running = client.submit(keep_running)
        try:
            yield eventually(lambda: asked(prometheus, "ray_vllm_num_requests_running"))
        finally:
            over.set()
        running.result()


def peagle(*arguments: str) -> str:
    command = [sys.executable, "-m", "peagle.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def asked(prometheus: str, query: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}, timeout=PATIENCE_S)
    found: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
    return found


def test_a_server_exports_every_declared_series_that_it_has_reason_to(adaptive: Served, prometheus: str) -> None:
    declared = {series for metric in METRICS for series in metric.series}

    def exports_all() -> bool:
        text = httpx.get(f"{adaptive.url}/metrics", timeout=PATIENCE_S).raise_for_status().text
        (adaptive.state / "metrics.txt").write_text(text, encoding="utf-8")
        exported = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
        assert exported <= declared
        missing = declared - exported - UNEVENTFUL_SERIES
        print(f"missing: {missing}")
        return not missing

    eventually(exports_all)  # a process that answers late is left out of a scrape


def test_every_panel_of_the_platform_has_something_to_show(adaptive: Served, prometheus: str) -> None:
    pytest.importorskip("matplotlib")
    folder = str(adaptive.state / "preview")
    options = ["--dashboards", str(GENERATED), "--out", folder, "--minutes", "2"]
    lines = peagle("dashboards", "preview", "--prometheus", prometheus, *options)
    print(lines)
    for title, uneventful in (("Overview", set()), ("Speculation", PANELS_OF_GPUS), ("Router", UNEVENTFUL_PANELS)):
        line = next(line for line in lines.splitlines() if line.startswith(f"peagle / {title}:"))
        empty = {name for name in line.partition("without data")[2].removeprefix(": ").split(", ") if name}
        assert empty <= uneventful


def _rules() -> Iterator[dict[str, Any]]:
    for path in sorted(GENERATED.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def _series(expr: str) -> set[str]:
    return {name for name, _ in selectors(nodes(expr))}


def _finds(prometheus: str, expr: str) -> bool:
    """Whether there is data, or a reason for none; an unmet condition finds at least its series."""
    if asked(prometheus, expr):
        return True
    series, excused = _series(expr), {*ABSENT, *UNEVENTFUL_SERIES}
    is_condition = re.search(r"[<>]|==|!=", re.sub(r"\{.*?\}", "", expr)) is not None
    return (is_condition or bool(series & excused)) and all(asked(prometheus, each) for each in series - excused)


def _lacking(prometheus: str, exprs: Iterable[str]) -> list[str]:
    """Return the expressions that find nothing for a while: a scrape may fail on a busy machine."""
    lacking, deadline = list(exprs), time.monotonic() + PATIENCE_S
    while lacking := [expr for expr in lacking if not _finds(prometheus, expr)]:
        if time.monotonic() > deadline:
            break
        time.sleep(1.0)
    return lacking


@pytest.mark.usefixtures("engine_gauges")
def test_every_query_of_every_dashboard_finds_data(prometheus: str) -> None:
    span = Span.of_last(5)
    asks = [each for path in sorted(GENERATED.glob("*.json")) for each in queries(json.loads(path.read_text("utf-8")))]
    assert len(asks) > 50
    assert _lacking(prometheus, (filled_in(ask, span, {"price": "1"}) for ask in asks)) == []


def test_every_rule_finds_data_and_every_alert_finds_its_series(prometheus: str) -> None:
    rules = list(_rules())
    recorded = {rule["record"] for rule in rules if "record" in rule}
    assert _lacking(prometheus, (rule["expr"] for rule in rules if "record" in rule)) == []
    wanted = {series for rule in rules for series in _series(rule["expr"])} - recorded - {*ABSENT, *UNEVENTFUL_SERIES}
    assert _lacking(prometheus, wanted) == []
    for rule in rules:
        asked(prometheus, rule["expr"])  # raises where Prometheus refuses it


def test_vllm_s_and_ray_s_own_series_stay_available(prometheus: str, engine_gauges: list[dict[str, Any]]) -> None:
    assert engine_gauges[0]["metric"]["model_name"]
    eventually(lambda: asked(prometheus, "ray_node_cpu_utilization"))


def test_a_server_that_is_well_fires_no_alert_but_those_of_speed(prometheus: str) -> None:
    eventually(lambda: {target["metric"]["job"] for target in asked(prometheus, "up == 1")} == {"peagle", "ray"})
    assert asked(prometheus, f'ALERTS{{alertstate="firing", alertname!~"{OF_SPEED}"}}') == []
